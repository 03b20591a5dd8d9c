"""The app that `plait serve` serves for convergence tests: the same pads as in memory; the server changes them, too."""

from typing import Any

from tests.integration.test_convergence import Pad, StrictPad, TypedPad

from plait import Plait, Thread, rpc

__all__ = ["KINDS", "LiveTextPad", "app"]


class Live(Thread[Any]):
    """Changes its state itself when it is told to, and tells its version."""

    @rpc
    def draw(self, number: int) -> None:
        self.update("/n", number)

    @rpc
    def sync(self) -> int:
        return self.version


class LivePad(Pad, Live):
    """Anything goes."""


class LiveStrictPad(StrictPad, Live):
    """Refuses changes on an older state if others have changed the same place."""


class LiveTypedPad(TypedPad, Live):
    """The same state with a type."""


class LiveTextPad(LivePad):
    """The same state with texts in it."""

    texts = ("/note", "/cards/*/body")
    initial_state: Any = {  # noqa: RUF012
        "list": [],
        "by": {},
        "n": 0,
        "note": "",
        "cards": [{"id": 1, "body": ""}, {"id": 2, "body": ""}],
    }


KINDS = (LivePad, LiveStrictPad, LiveTypedPad)

app = Plait(*KINDS, LiveTextPad)
