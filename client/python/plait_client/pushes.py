"""The pushes of one client: which of them go out, which are refused here, and what becomes of them."""

from collections import deque
from collections.abc import Callable
from typing import Final

from plait_client.document import Document
from plait_client.happenings import Acked, Happening, Nacked
from plait_client.limit import FrameLimit
from plait_client.pace import Pace
from plait_client.pending import Pending, Push
from plait_client.replica import Replica
from plait_client.sending import Sending
from plait_schemas import messages

__all__ = ["Pushes"]

_TOO_LARGE: Final = ("too_large", "the change is larger than the server takes")
_ORPHANED: Final = ("conflict", "it was refused, or what it was made on")


class Pushes:
    """The pushes without an answer. `send` is given the frames that go out, `tell` what becomes of the pushes.

    While `is_held` says so, nothing goes out.
    """

    def __init__(
        self,
        replica: Replica,
        limit: FrameLimit,
        *,
        clock: Callable[[], float],
        send: Callable[[messages.Push], None],
        tell: Callable[[Happening], None],
        is_held: Callable[[], bool],
    ) -> None:
        self._replica = replica
        self._limit = limit
        self._clock = clock
        self._send = send
        self._tell = tell
        self._is_held = is_held
        self._pending = Pending()
        self._sending = Sending(self._pending)
        self._pace = Pace(clock)
        self.document: Final = Document(replica, self._pending)
        # The push that is taken to have been too large, unless the next join says that it was answered for.
        self._suspect: Push | None = None
        # What waits for pushes: how many there were before it, what sends it, and whether it may be sent.
        self._after: deque[tuple[int, Callable[[], None], Callable[[], bool]]] = deque()

    @property
    def open(self) -> list[Push]:
        """The pushes whose fate is open."""
        return [push for push in self._pending if not push.is_settled]

    @property
    def is_busy(self) -> bool:
        """Whether an answer to a push may still come, even to a settled one, or something waits for a push."""
        return len(self._pending) > 0 or len(self._after) > 0

    def call_after(self, say: Callable[[], None], may_say: Callable[[], bool]) -> None:
        """Call `say` as soon as all pushes so far are sent and `may_say` allows it, which may be at once.

        While the server refuses pushes as too fast, wait for their answers: it would refuse what `say` sends, too.
        """
        self._after.append((self._pending.count, say, may_say))
        self.send_due()

    # Sockets and time

    def joined(self) -> None:
        """Begin on a socket that has joined."""
        self._refuse_suspect()
        self._sending.open()
        self.send_due()

    def disconnected(self) -> None:
        """The socket is gone, and with it all that was on its way."""
        self._sending.close()
        self._pace.reset()

    def suspect(self) -> None:
        """The server has closed the socket for the size of a frame."""
        self._suspect = self._pending.largest_sent()

    @property
    def resumes_at(self) -> float | None:
        """When to go on sending, where the server has asked for patience."""
        times = (self._sending.resumes_at, self._pace.free_at if self._after else None)
        return min((time for time in times if time is not None), default=None)

    def tick(self) -> None:
        """Go on sending, if it is time for that."""
        self._sending.release(self._clock())
        self.send_due()

    # Answers

    def acked(self, frame: messages.Ack, connection: str | None) -> None:
        """Take in that a push is durable. Raises Gap."""
        push = self._sending.look_up(frame.ref)
        change = self.document.ack(frame, push, connection)
        if change is not None:
            self._tell(change)
        if push is not None:
            self._sending.drop(push, is_refused=False)
            self._pace.spent()
            self.document.answered(push, change)
            self._tell(Acked(push, frame.version))
            self.send_due()

    def nacked(self, frame: messages.Nack) -> None:
        """Take in that a push was refused, or is to come again."""
        match frame:
            case messages.Nack(code="rate_limited", retry_after=float(delay)):
                self._sending.was_superseded(frame.ref)
                self._sending.wait(frame.ref, self._clock() + delay)
                self._pace.slow(delay)
            case messages.Nack(code="gap", expected=int(expected)):
                if not self._sending.was_superseded(frame.ref):
                    self._sending.expect(frame.ref, expected)
            case _:
                push = self._sending.look_up(frame.ref)
                if push is not None:
                    self._pace.spent()
                    # What was answered before on another socket had no push sent after it in vain.
                    index = self._sending.drop(push, is_refused=not push.is_settled)
                    self.document.refused(push, index)
                    self._tell(Nacked(push, frame))
        self.send_due()

    # Sending

    def send_due(self) -> None:
        """Send, or refuse, what may go out at this time."""
        self._pace.release()
        while not self._is_held() and self._follow() and (push := self._sending.due) is not None:
            frame = self._frame(push)
            if push.is_orphan and not push.is_settled:
                self._refuse(push, *_ORPHANED)
            elif not push.is_settled and not self._limit.allows(frame):
                self._refuse(push, *_TOO_LARGE)
            else:
                self._sending.sent(push)
                self._send(frame)
        if not self.is_busy:
            self._pace.end()

    def _follow(self) -> bool:
        """Send what is due after pushes; return whether the next push may be sent."""
        while self._after and self._has_come_to(self._after[0][0]):
            if self._pace.free_at is not None or not self._after[0][2]():
                return False
            self._pace.spent()
            self._after.popleft()[1]()
        return True

    def _has_come_to(self, count: int) -> bool:
        """Return whether what follows the first `count` pushes is next to be sent."""
        return self._sending.has_answers(count) if self._pace.is_slow else self._sending.has_sent(count)

    def _frame(self, push: Push) -> messages.Push:
        # Where its place is gone it must not be taken to lead anywhere in the state that is known by now.
        base = push.lost_on or self._replica.base
        made = None if push.made == base else push.made
        answered = self._pending[0].ref - 1
        # The server knows what a settled one was, and is only asked what became of it.
        ops = [] if push.is_settled else push.ops
        return messages.Push(push.ref, base, ops, made, None if answered == push.ref - 1 else answered)

    def _refuse_suspect(self) -> None:
        """Refuse, in the server's place, the push that it closed the last socket for: it would do so again."""
        push, self._suspect = self._suspect, None
        if push is not None and not push.is_settled:
            self._refuse(push, *_TOO_LARGE)

    def _refuse(self, push: Push, code: str, message: str) -> None:
        """Refuse a push, in the place of the server, which has not seen it."""
        answer = messages.Nack(push.ref, code, message, self._replica.version)
        self.document.refused(push, self._pending.skip(push))
        self._tell(Nacked(push, answer))
