"""The server's side of the protocol for one thread, as small as it can be and right: no I/O, no storage, no hooks."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from plait_schemas import messages
from plait_schemas.codec import decode_json, encode_json
from plait_schemas.messages import ClientMessage, ServerMessage
from plait_schemas.patch import Op, PatchError, apply
from plait_schemas.rebase import rebase

__all__ = ["Entry", "Link", "Peer"]


class Entry(NamedTuple):
    """One version: its operations, and the client that made them."""

    ops: Sequence[Op]
    client: str


class Link:
    """A socket as the server sees it. `out` has the frames that were sent to it."""

    def __init__(self, send: Callable[[ServerMessage], None]) -> None:
        self.send = send
        self.client = ""
        self.id = ""
        # Whether it is told of the state.
        self.has_state = True
        # Whether it reads so slowly that changes are held back, and the other messages that wait for that.
        self.is_slow = False
        self.told = 0
        # The last push that was refused on it.
        self.refused = 0
        self.waiting: list[ServerMessage] = []


class Peer:
    """A thread: its state, its history, and the outcomes of its clients' pushes."""

    def __init__(self, state: Any, *, validate: Callable[[Any], str | None] = lambda state: None) -> None:
        self.epoch = "e"
        self.state = state
        self.history: list[Entry] = []
        self.links: list[Link] = []
        self.validate = validate
        # Where what does not validate is wrong.
        self.refused_at = "/n"
        # How many bytes it says that a frame may have.
        self.max_frame: int | None = None
        # Which members it says that identify the elements of lists.
        self.list_keys: dict[str, str] = {}
        # Which strings it says that are texts.
        self.texts: list[str] = []
        # Seconds that pushes are told to come again after, and how many of them.
        self.retry_after = 0.0
        self.hasty = 0
        self._answers: dict[str, dict[int, messages.Ack | messages.Nack]] = {}
        self._first: dict[str, int] = {}
        self._ids = itertools.count(1)

    @property
    def version(self) -> int:
        return len(self.history)

    # Changes

    def change(self, ops: Iterable[Op], *, client: str = "server", source: Link | None = None) -> None:
        """Carry out operations as the next version and tell everybody but the source. Raises PatchError."""
        ops = list(ops)
        self.state = apply(self.state, ops)
        self.history.append(Entry(ops, client))
        for link in self.links:
            if not link.has_state:
                continue
            if not link.is_slow and link is not source:
                self._tell(link, messages.Change(self.version, ops, source.id if source else "server"))
            elif not link.is_slow:
                link.told = self.version

    def _tell(self, link: Link, frame: ServerMessage) -> None:
        link.told = self.version
        link.send(frame)

    def catch_up(self, link: Link, *, whole: bool) -> None:
        """A slow reader has room again: it gets everything at once, and then the frames that had to wait."""
        link.is_slow = False
        if link not in self.links:
            return
        if link.told < self.version and whole:
            link.send(messages.Snapshot(self.epoch, self.version, msgspec.Raw(encode_json(self.state))))
        elif link.told < self.version:
            link.send(messages.Changes(link.told, self.version, self._since(link.told)))
        link.told = self.version
        for frame in link.waiting:
            link.send(frame)
        link.waiting.clear()

    def _since(self, version: int) -> list[Op]:
        return [op for entry in self.history[version:] for op in entry.ops]

    # Frames

    def join(self, link: Link, frame: messages.Join, *, whole: bool = False, readonly: bool = False) -> None:
        """Join a client, with the changes that it has missed or, if they are not kept, the whole state."""
        link.client, link.id, link.told = frame.client, f"s{next(self._ids)}", self.version
        link.has_state = frame.state
        self.links.append(link)
        last_ref = max(self._answers.get(frame.client, ()), default=0)
        knows = frame.have is not None and frame.have[0] == self.epoch and not whole
        has_state = link.has_state and not knows and self.state is not None
        missed = self._since(frame.have[1]) if knows and frame.have and frame.have[1] < self.version else msgspec.UNSET
        state = msgspec.Raw(encode_json(self.state)) if has_state else msgspec.UNSET
        link.send(
            messages.Joined(
                link.id,
                "note/a",
                self.epoch,
                self.version,
                last_ref,
                readonly,
                state=state,
                ops=missed,
                max_frame=self.max_frame,
                list_keys=self.list_keys,
                texts=self.texts,
            )
        )

    def leave(self, link: Link) -> None:
        if link in self.links:
            self.links.remove(link)

    def push(self, link: Link, frame: messages.Push) -> None:
        """Answer a push."""
        answer = self._answer(link, frame)
        if link.is_slow:
            link.waiting.append(answer)
        else:
            link.send(answer)

    def _answer(self, link: Link, frame: messages.Push) -> messages.Ack | messages.Nack:
        answers = self._answers.setdefault(link.client, {})
        last = max(answers, default=0)
        if frame.ref in answers:
            return answers[frame.ref]
        if frame.ref <= last:
            return messages.Nack(frame.ref, "unanswerable", "long ago", self.version)
        # An unknown client may begin with any number, and must then continue from it.
        expected = last + 1 if last else self._first.setdefault(link.client, frame.ref)
        if frame.ref != expected:
            return messages.Nack(frame.ref, "gap", "gap", self.version, expected=expected)
        if self.hasty:
            self.hasty -= 1
            return messages.Nack(frame.ref, "rate_limited", "slow down", self.version, retry_after=self.retry_after)
        if frame.answered is not None and frame.answered < link.refused:
            return messages.Nack(frame.ref, "gap", "one before it was refused", self.version, expected=frame.ref)
        answers[frame.ref] = answer = self._apply(link, frame)
        if isinstance(answer, messages.Nack):
            link.refused = frame.ref
        for ref in [ref for ref in answers if ref <= frame.ref - messages.UNANSWERED]:
            del answers[ref]
        return answer

    def _apply(self, link: Link, frame: messages.Push) -> messages.Ack | messages.Nack:
        if frame.base[0] != self.epoch:
            return messages.Nack(frame.ref, "conflict", "another history", self.version)
        others = [entry.ops for entry in self.history[frame.base[1] :] if entry.client != link.client]
        moved = rebase(frame.ops, itertools.chain(*others), self.state)
        try:
            state = apply(self.state, moved.ops)
        except PatchError as error:
            return messages.Nack(frame.ref, "conflict", str(error), self.version)
        if moved.is_lost:
            return messages.Nack(frame.ref, "conflict", "gone", self.version, path=next(iter(moved.conflicts), None))
        refusal = self.validate(state)
        if refusal is not None:
            return messages.Nack(frame.ref, "rejected", refusal, self.version, path=self.refused_at)
        if moved.ops:
            self.change(moved.ops, client=link.client, source=link)
        applied = msgspec.UNSET if encode_json(moved.ops) == encode_json(frame.ops) else moved.ops
        return messages.Ack(frame.ref, self.version, rebased=bool(others), ops=applied)

    def receive(self, link: Link, frame: ClientMessage) -> None:
        """Take in a frame that needs no more than the thread's state."""
        match frame:
            case messages.Join():
                self.join(link, frame)
            case messages.Push():
                self.push(link, frame)
            case messages.Ping(messages=count):
                # All messages are taken.
                link.send(messages.Pong(count))
            case messages.Message(data=data):
                link.send(messages.Message(data))
            case messages.Call(have=None):
                self._call(link, frame)
            case _:
                pass

    def _call(self, link: Link, frame: messages.Call) -> None:
        args = [decode_json(arg) for arg in frame.args]
        match frame.method:
            case "add":
                link.send(_result(frame.ref, sum(args), done=True))
            case "run:echo":
                link.send(_result(frame.ref, {"given": args}, done=True))
            case "run:interrupt":
                link.send(_result(frame.ref, args == ["stop"], done=True))
            case "count" | "run:count":
                for number in range(args[0]):
                    link.send(_result(frame.ref, number, done=False))
                link.send(messages.Result(frame.ref, done=True))
            case "set_n":
                self.change([Op("replace", "/n", args[0])])
                link.send(messages.Result(frame.ref, done=True))
            case "begin":
                link.send(_result(frame.ref, "begun", done=False))
            case _:
                link.send(messages.Error("method_not_found", f"there is no {frame.method}", frame.ref))


def _result(ref: int, value: Any, *, done: bool) -> messages.Result:
    return messages.Result(ref, done, value=msgspec.Raw(encode_json(value)))
