"""The session follows every script of a conversation in schemas/vectors."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.cases import each_case

from plait_client.conversations import Delivered, Undelivered
from plait_client.errors import CallError, Closed
from plait_client.events import Acked, CallLost, Changed, Dropped, Joined, Nacked, SessionEvent
from plait_client.opened_part import OpenedPart
from plait_client.queries import FollowedQuery, Queries
from plait_client.session import Session
from plait_client.task_runs import TaskRuns
from plait_schemas import messages
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.frames import decode_server, encode
from plait_schemas.patch import Op

VECTORS = Path(__file__).parents[2] / "schemas" / "vectors"
# Only the JavaScript client shows what calls will do.
FILES = [file for file in sorted(VECTORS.glob("*.json")) if "optimistic" not in json.loads(file.read_text())]


class Replay:
    """A session and a clock, and a method for each step of a script."""

    def __init__(self, client: str, *, has_state: bool = True) -> None:
        self.now = 1000.0
        self.session = Session(client, now=lambda: self.now, has_state=has_state)
        self.queries = Queries(self.session, lambda: None)
        self.followed: dict[str, FollowedQuery] = {}
        self.ended: dict[str, str] = {}
        self.sources: list[str | None] = []
        self.has_asked = False
        # The events that the server sent: name, data and sender.
        self.events: list[Any] = []

    def run(self, step: dict[str, Any]) -> None:
        ((name, argument),) = step.items()
        getattr(self, f"do_{name}")(argument)
        self.has_asked |= self.session.needs_socket and name not in ("lost", "open")
        events = self.session.take_events()
        for event in events:
            self.hand_over(event)
        if self.session.stopped is not None:
            self.queries.end(Closed(self.session.stopped, "stopped"))
        self.ended |= dict(_outcomes(events))
        if name == "receive" and argument["type"] in ("change", "changes", "snapshot"):
            self.sources += [each.source for each in events if isinstance(each, Changed)]

    def hand_over(self, event: SessionEvent) -> None:
        match event:
            case Joined():
                self.queries.join()
            case messages.Result() | messages.Error() | CallLost() | Dropped():
                self.queries.put(event)
            case messages.Event(name=name, data=data, from_=sender):
                self.events.append([name, decode_json(data), sender])

    # What happens

    def do_open(self, _: bool) -> None:
        self.has_asked = False
        self.session.open()

    def do_lost(self, code: int) -> None:
        self.session.lost(code)

    def do_edit(self, ops: list[Any]) -> None:
        self.session.push([Op(**op) for op in ops])

    def do_set(self, state: Any) -> None:
        self.session.push(self.session.diff(self.session.shown, state))

    def do_receive(self, frame: Any) -> None:
        self.session.receive(decode_server(encode_json(frame)))

    def do_wait(self, seconds: float) -> None:
        self.now += seconds
        self.session.tick()

    def do_view(self, part: str) -> None:
        self.session.conversations.of(part).open()
        self.session.flush()

    def do_watch(self, part: str) -> None:
        self.session.conversations.find(part, TaskRuns).open()
        self.session.flush()

    def do_older(self, part: str) -> None:
        self.session.conversations.of(part).load_older()
        self.session.flush()

    def do_leave(self, part: str) -> None:
        self.session.conversations.find(part, OpenedPart).close()
        self.session.flush()

    def do_post(self, message: tuple[str, str]) -> None:
        content, key = message
        self.session.post("messages", content, key)

    def do_emit(self, event: tuple[str, Any]) -> None:
        self.session.emit(*event)

    def do_follow(self, what: list[Any]) -> None:
        query = self.followed[json.dumps(what)] = FollowedQuery(what[0], what[1], lambda: None)
        self.queries.follow(query)

    def do_unfollow(self, what: list[Any]) -> None:
        self.queries.unfollow(self.followed.pop(json.dumps(what)))

    # What is expected

    def do_sent(self, frames: list[Any]) -> None:
        sent = self.session.take_frames()
        assert len(sent) == len(frames)
        assert [_written(frame, as_in=expected) for frame, expected in zip(sent, frames, strict=True)] == frames

    def do_shown(self, state: Any) -> None:
        assert self.session.shown == state

    def do_presence(self, expected: dict[str, Any]) -> None:
        assert self.session.presence == expected

    def do_events(self, expected: list[Any]) -> None:
        found, self.events = self.events, []
        assert found == expected

    def do_messages(self, expected: list[Any]) -> None:
        assert [[each.content, each.status] for each in self.session.conversations.show("messages")] == expected

    def do_calls(self, expected: list[Any]) -> None:
        shown = self.session.conversations.show("messages")
        calls = [call for each in shown for call in each.tool_calls or ()]
        assert [[call["id"], *call["function"].values()] for call in calls] == expected

    def do_approvals(self, expected: list[Any]) -> None:
        waiting = self.session.conversations.of("messages").approvals
        shown = [[each.call, each.tool, each.arguments, each.message_id, each.may_approve] for each in waiting]
        assert shown == expected

    def do_runs(self, expected: list[Any]) -> None:
        runs = self.session.conversations.find("tasks", TaskRuns).show()
        assert [[run.id, run.status, run.value, run.result] for run in runs] == expected

    def do_results(self, expected: list[Any]) -> None:
        shown = [
            [*json.loads(what), query.at if query.changes else None, query.rows, _code(query.error)]
            for what, query in self.followed.items()
        ]
        assert shown == expected

    def do_more(self, has_more: bool) -> None:
        assert self.session.conversations.of("messages").has_more == has_more

    def do_confirmed(self, expected: list[Any]) -> None:
        assert [self.session.epoch, self.session.version, self.session.confirmed] == expected

    def do_pending(self, refs: list[int]) -> None:
        assert [push.ref for push in self.session.pending] == refs

    def do_outcomes(self, expected: dict[str, str]) -> None:
        assert self.ended == expected
        self.ended = {}

    def do_sources(self, expected: list[str | None]) -> None:
        assert self.sources == expected
        self.sources = []

    def do_rejoin(self, _: bool) -> None:
        assert self.has_asked
        self.has_asked = False

    def do_stopped(self, code: int) -> None:
        assert self.session.stopped == code


def _expanded(value: Any) -> Any:
    """Return a part of a script with the long texts that it stands for."""
    match value:
        case {"$repeat": [str(text), int(times)]}:
            return text * times
        case dict():
            return {name: _expanded(each) for name, each in value.items()}
        case list():
            return [_expanded(each) for each in value]
        case _:
            return value


def _written(frame: messages.ClientMessage | bytes, *, as_in: dict[str, Any]) -> Any:
    """Return a frame as a script has it: one push may stand there with its ref alone, whatever else it has."""
    assert not isinstance(frame, bytes)
    written = decode_json(encode(frame))
    return {name: written[name] for name in ("type", "ref")} if as_in.keys() == {"type", "ref"} else written


def _outcomes(events: Iterable[SessionEvent]) -> Iterator[tuple[str, str]]:
    for event in events:
        match event:
            case Acked(push, version):
                yield str(push.ref), f"ack {version}"
            case Nacked(push, answer):
                yield str(push.ref), f"nack {answer.code}"
            case Delivered(message, id):
                yield message.key, f"sent {id}"
            case Undelivered(message, answer):
                yield message.key, f"unsent {answer.code}"


def _code(error: Exception | None) -> str | None:
    match error:
        case CallError(code=code):
            return code
        case Closed(code=4403):
            return "forbidden"
    assert error is None
    return None


@each_case("path", FILES)
def test_the_session_does_as_the_script_says(path: Path) -> None:
    script = json.loads(path.read_text())
    replay = Replay(script["client"], has_state=script.get("state", True))
    for number, step in enumerate(script["steps"]):
        try:
            replay.run(_expanded(step))
        except AssertionError as error:
            raise AssertionError(f"step {number}: {json.dumps(step)}") from error
