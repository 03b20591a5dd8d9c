"""Sessions of the TypeScript client, which run in Node while their frames are carried here."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.integration.builds import Builds
from tests.integration.convergence import Member, World
from tests.integration.convergence_node import FOLDER, bundle_sessions

from plait_schemas.codec import encode_json
from plait_schemas.frames import decode_client, encode
from plait_schemas.messages import ClientMessage, ServerMessage
from plait_schemas.patch import Op

__all__ = ["NodeMember", "NodeSessions", "node_sessions"]


class NodeSessions:
    """The program that holds the sessions; each command is answered before the next is given."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def tell(self, command: str, **options: Any) -> Any:
        """Carry out a command, and return the session's data afterwards."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(encode_json({"command": command, **options}) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the program with the sessions has ended; what it said is above"
        return json.loads(line)


@contextmanager
def node_sessions(builds: Builds) -> Iterator[NodeSessions]:
    """Run the program in Node, with the client's bundle."""
    options = json.dumps({"bundle": bundle_sessions(builds).as_uri()})
    process = subprocess.Popen(["node", FOLDER / "sessions.js", options], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield NodeSessions(process)
    finally:
        process.kill()
        process.communicate()


class NodeSession:
    """One session in Node, with as much of the face of the Python one as the network of a World needs."""

    def __init__(self, node: NodeSessions, world: World, name: str) -> None:
        self._node = node
        self._world = world
        self._name = name
        self.needs_socket = True
        self.epoch: str | None = None
        self.version = 0
        self.shown: Any = None
        self.confirmed: Any = None
        self.outcomes: list[tuple[int, str]] = []
        self._count = 0
        self._frames: list[ClientMessage | bytes] = []
        self._tell("create")

    @property
    def pending(self) -> bool:
        """Whether some push has no answer."""
        return self._count > 0

    def open(self) -> None:
        self.needs_socket = False
        self._tell("open")

    def lost(self, code: int) -> None:
        self.needs_socket = True
        self._tell("lost", code=code)

    def receive(self, frame: ServerMessage) -> None:
        self._tell("receive", frame=json.loads(encode(frame)))

    def push(self, number: int, ops: list[Op]) -> bool:
        """Push operations, and tell whether there were any."""
        return self._tell("push", number=number, ops=ops) is True

    def set(self, number: int, state: Any) -> bool:
        """Push what is different in a whole state, and tell whether anything is."""
        return self._tell("set", number=number, next=state) is True

    def take_frames(self) -> list[ClientMessage | bytes]:
        frames, self._frames = self._frames, []
        return frames

    def _tell(self, command: str, **options: Any) -> Any:
        told = self._node.tell(command, name=self._name, time=self._world.now, **options)
        self._frames += [decode_client(json.dumps(frame).encode()) for frame in told["frames"]]
        self.outcomes += [(ref, outcome) for ref, outcome in told["outcomes"]]
        self.epoch, self.version, self._count = told["epoch"], told["version"], told["pending"]
        self.shown, self.confirmed = told["shown"], told["confirmed"]
        if told["isLost"]:
            self.needs_socket = True
            self._frames.clear()
        return told["answer"]


class NodeMember(Member):
    """A client of a World whose session runs in Node."""

    session: NodeSession  # type: ignore[assignment]

    def __init__(self, node: NodeSessions, world: World, name: str) -> None:
        super().__init__(world, name)
        self.session = NodeSession(node, world, name)
        self._count = 0

    @property
    def has_answers(self) -> bool:
        return len(self.outcomes) == self._count

    def push(self, number: int, ops: list[Op]) -> bool:
        """Push operations on the shown state, and return whether there were any."""
        return self._pushed(self.session.push(number, ops))

    def set(self, number: int, state: Any) -> bool:
        """Push what is different in a whole state, and tell whether anything is."""
        return self._pushed(self.session.set(number, state))

    def _pushed(self, is_pushed: bool) -> bool:
        self._count += is_pushed
        self.note()
        return is_pushed

    def note(self) -> None:
        """Record the events."""
        for number, outcome in self.session.outcomes:
            assert number not in self.outcomes, "a push has had two outcomes"
            self.outcomes[number] = outcome
        self.session.outcomes.clear()
