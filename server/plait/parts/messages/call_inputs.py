"""The calls of tools in a message that is being written, as far as a model has written them. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from plait.parts.messages.message import Message, make_call, read_call
from plait_schemas.conversation import Input

__all__ = ["CallInputs", "extend_call"]


class CallInputs:
    """Grows with each piece of a call's arguments. Only clients that look at the message get them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        # The arguments that were told, and the pieces after them, by the ids of the calls.
        self._told: dict[str, str] = {}
        self._new: dict[str, list[str]] = {}
        # The characters of all arguments.
        self.size = 0

    def add(self, call: str, name: str, text: str) -> None:
        """Add to the arguments of a call of the tool `name`."""
        self._names.setdefault(call, name)
        self._new.setdefault(call, []).append(text)
        self.size += len(text)

    @property
    def has_new(self) -> bool:
        """Whether something was added since the last `take`."""
        return bool(self._new)

    def take(self) -> list[Input]:
        """Return what was added since the last time."""
        new, self._new = self._new, {}
        found = list[Input]()
        for call, pieces in new.items():
            told, text = self._told.get(call, ""), "".join(pieces)
            self._told[call] = told + text
            found.append(Input(call=call, name=self._names[call], at=len(told), text=text))
        return found

    @property
    def calls(self) -> Sequence[Mapping[str, Any]] | None:
        """The calls that were told, as a message has them; None if there are none."""
        return [make_call(id, self._names[id], text) for id, text in self._told.items()] or None


def extend_call(message: Message, added: Input) -> Message:
    """Return a streaming message with more of the arguments of a call, unless they are there already."""
    calls = {read_call(each)[0]: each for each in message.tool_calls or ()}
    before = read_call(calls[added.call])[2] if added.call in calls else ""
    calls[added.call] = make_call(added.call, added.name, before + added.text[max(0, len(before) - added.at) :])
    return replace(message, tool_calls=[*calls.values()])
