"""Instruments that keep what they are told, as an author could write them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from plait import NoInstruments

__all__ = ["Event", "Raising", "Recorder"]


class Event(NamedTuple):
    """One call: the name of the method and its arguments, without traces; and its own trace and that of its cause."""

    name: str
    arguments: tuple[Any, ...]
    trace: int | None = None
    parent: int | None = None


class Recorder(NoInstruments):
    """Keeps what it is told; a trace is a number."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._count = 0

    def of(self, *names: str) -> list[tuple[Any, ...]]:
        """Return the arguments of the calls of some methods."""
        return [event.arguments for event in self.events if event.name in names]

    def find(self, name: str, *first: Any) -> Event:
        """Return the only call of a method whose arguments begin like this."""
        found = [each for each in self.events if each.name == name and each.arguments[: len(first)] == first]
        assert len(found) == 1, (name, first, found)
        return found[0]

    def ended(self, name: str, trace: int | None) -> tuple[Any, ...]:
        """Return the arguments of the only call that told the end of a trace."""
        found = [each.arguments for each in self.events if each.name == name and each.trace == trace]
        assert len(found) == 1, (name, trace, found)
        return found[0]

    def causes(self, event: Event) -> Iterator[Event]:
        """Yield what caused an event, the nearest first."""
        while event.parent is not None:
            event = next(each for each in self.events if each.trace == event.parent)
            yield event

    def request_began(self, kind: str, name: str, method: str, traceparent: str | None) -> int:
        return self._begin("request_began", (kind, name, method, traceparent))

    def request_ended(self, trace: int, status: int) -> None:
        self.events.append(Event("request_ended", (status,), trace))

    def message_began(self, kind: str, name: str, type: str, traceparent: str | None) -> int:
        return self._begin("message_began", (kind, name, type, traceparent))

    def message_ended(self, trace: int, outcome: str) -> None:
        self.events.append(Event("message_ended", (outcome,), trace))

    def turn_began(self, kind: str, name: str, turn: str, waited: float, parent: int | None) -> int:
        assert waited >= 0
        return self._begin("turn_began", (kind, name, turn), parent)

    def turn_ended(self, trace: int, seconds: float, outcome: str) -> None:
        assert seconds >= 0
        self.events.append(Event("turn_ended", (outcome,), trace))

    def step_began(self, kind: str, name: str, task: str, step: str, parent: int | None) -> int:
        return self._begin("step_began", (kind, name, task, step), parent)

    def step_ended(self, trace: int, seconds: float, outcome: str) -> None:
        assert seconds >= 0
        self.events.append(Event("step_ended", (outcome,), trace))

    def task_slept(self, kind: str, task: str, seconds: float) -> None:
        self.events.append(Event("task_slept", (kind, task, round(seconds))))

    def task_ended(self, kind: str, task: str, status: str) -> None:
        self.events.append(Event("task_ended", (kind, task, status)))

    def change_made(self, kind: str, name: str, size: int, parent: int | None) -> int:
        return self._begin("change_made", (kind, name, size), parent)

    def change_committed(self, trace: int, seconds: float, batch: int) -> None:
        assert seconds >= 0
        assert batch >= 1
        self.events.append(Event("change_committed", (), trace))

    def change_failed(self, trace: int, code: str) -> None:
        self.events.append(Event("change_failed", (code,), trace))

    def change_sent(self, trace: int, connections: int) -> None:
        self.events.append(Event("change_sent", (connections,), trace))

    def socket_opened(self, protocol: str) -> None:
        self.events.append(Event("socket_opened", (protocol,)))

    def socket_closed(self, protocol: str, code: int) -> None:
        self.events.append(Event("socket_closed", (protocol, code)))

    def joined(self, kind: str, protocol: str, sent: str) -> None:
        self.events.append(Event("joined", (kind, protocol, sent)))

    def woke(self, kind: str, seconds: float) -> None:
        assert seconds > 0
        self.events.append(Event("woke", (kind,)))

    def slept(self, kind: str) -> None:
        self.events.append(Event("slept", (kind,)))

    def push_answered(self, kind: str, outcome: str) -> None:
        self.events.append(Event("push_answered", (kind, outcome)))

    def reader_lagged(self, kind: str) -> None:
        self.events.append(Event("reader_lagged", (kind,)))

    def limit_hit(self, limit: str) -> None:
        self.events.append(Event("limit_hit", (limit,)))

    def measure_cluster(self, read: Any) -> None:
        self.events.append(Event("measure_cluster", ()))

    def store_failed(self, code: str) -> None:
        self.events.append(Event("store_failed", (code,)))

    def _begin(self, name: str, arguments: tuple[Any, ...], parent: int | None = None) -> int:
        self._count += 1
        self.events.append(Event(name, arguments, self._count, parent))
        return self._count


class Raising(NoInstruments):
    """Raises in every method."""

    def __getattribute__(self, name: str) -> Any:
        def fail(*_: Any) -> None:
            raise ZeroDivisionError(name)

        fail.__qualname__ = name
        return object.__getattribute__(self, name) if name.startswith("_") else fail
