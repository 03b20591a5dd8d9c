"""How the native protocol writes what a thread tells all of its connections."""

from typing import Final

from plait.connection import PlainWire
from plait.revision import Revision
from plait.transport import Frame
from plait_schemas.codec import encode_json
from plait_schemas.messages import PresenceDiff, encode

__all__ = ["PLAIT", "PlaitWire"]


class PlaitWire(PlainWire):
    """Tells of a change by its operations."""

    def change(self, revision: Revision) -> Frame:
        row = revision.change
        assert row is not None
        source = encode_json(row.source)
        return Frame(b'{"type":"change","version":%d,"ops":%b,"source":%b}' % (row.version, row.ops, source))

    def message(self, data: object) -> Frame:
        if isinstance(data, bytes | bytearray | memoryview):
            return Frame(bytes(data), is_text=False)
        return Frame(b'{"type":"message","data":%b}' % encode_json(data))

    def event(self, name: str, data: object) -> Frame:
        return Frame(b'{"type":"event","name":%b,"data":%b}' % (encode_json(name), encode_json(data)))

    def presence(self, diff: PresenceDiff) -> Frame:
        return Frame(encode(diff))


PLAIT: Final = PlaitWire()
