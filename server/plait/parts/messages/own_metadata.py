"""The member of the metadata of messages that plait itself writes, and neither code nor clients can."""

from collections.abc import Mapping
from typing import Any, Final

from plait.parts.messages.message import Message

__all__ = ["MARK", "OwnMetadata", "check_own", "find_run", "keep_own", "make_own", "merge_metadata", "read_own"]

_OWN: Final = "plait"

MARK: Final = "execution"
"""The member of an answer that names its run and its step."""


class OwnMetadata(dict[str, Any]):
    """Metadata that may have this member. No JSON becomes one."""

    @property
    def own(self) -> Mapping[str, Any]:
        """The value of that member."""
        found: Mapping[str, Any] = self[_OWN]
        return found


def make_own(members: Mapping[str, Any]) -> OwnMetadata:
    """Return metadata with what plait writes."""
    return OwnMetadata({_OWN: members} if members else {})


def read_own(message: Message) -> Mapping[str, Any]:
    """Return what plait has written into the metadata of a message."""
    found: Mapping[str, Any] = message.metadata.get(_OWN, {})
    return found


def find_run(message: Message) -> str | None:
    """Return the run whose answer a message is; None if it is no answer of an execution."""
    mark = read_own(message).get(MARK)
    return mark.get("run") if isinstance(mark, Mapping) else None


def check_own(metadata: object) -> None:
    """Raise ValueError if metadata that plait has not made has its member."""
    if isinstance(metadata, Mapping) and _OWN in metadata and not isinstance(metadata, OwnMetadata):
        raise ValueError(f"the metadata of a message may not have {_OWN!r}, which only plait itself writes")


def keep_own(before: Mapping[str, Any], after: Mapping[str, Any]) -> OwnMetadata:
    """Return the metadata of a hook, with what plait has written before."""
    own = {name: value for name, value in before.items() if name == _OWN}
    return OwnMetadata({**{name: value for name, value in after.items() if name != _OWN}, **own})


def merge_metadata(before: Mapping[str, Any], added: Mapping[str, Any]) -> OwnMetadata:
    """Return metadata with more members, also in what plait has written."""
    own = {**before.get(_OWN, {}), **added.get(_OWN, {})}
    return OwnMetadata({**before, **added, **make_own(own)})
