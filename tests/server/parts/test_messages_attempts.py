"""When the agent is called for what is queued, and when a message is given up."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from plait.parts.attempts import CRASHES, PAUSES
from plait.parts.messages.message import Message
from plait.parts.messages.state import QueueAttempts

HERE, THERE = "here", "there"


def queued(*positions: int) -> list[Message]:
    """Return a queue with messages at positions, without 0."""
    return [Message(id=f"{position}", role="user", position=position) for position in positions if position]


def test_nothing_is_due_before_something_is_queued() -> None:
    assert QueueAttempts().due == 0
    assert QueueAttempts().follow(0, 5) == QueueAttempts()
    assert QueueAttempts().follow(1, 5) == QueueAttempts(due=5)


def test_the_due_time_stays_while_an_attempt_is_under_way() -> None:
    attempts = QueueAttempts().follow(1, 5).begin_at(1, HERE)
    assert attempts.process
    assert attempts.due == 5
    assert attempts.follow(2, 9) == attempts
    assert attempts.follow(0, 9) == attempts


def test_a_message_has_crashed_out_after_five_attempts_that_raised() -> None:
    attempts, now = QueueAttempts().follow(1, 5), 5
    for number in range(1, PAUSES.attempts):
        failed = attempts.begin_at(1, HERE).fail(PAUSES, now)
        assert failed is not None
        attempts = failed.end(1)
        assert attempts.due == now + PAUSES.pause(number)
        now = attempts.due
    begun = attempts.begin_at(1, HERE)
    assert begun.fail(PAUSES, now) is None
    assert begun.succeed(2, 9) == QueueAttempts(due=9)
    assert begun.succeed(0, 9) == QueueAttempts()


def test_a_message_has_crashed_out_after_three_attempts_that_ended_the_process() -> None:
    attempts = QueueAttempts().follow(1, 5)
    for number in range(CRASHES):
        assert not attempts.has_crashed_out
        assert attempts.is_suspect == (number == CRASHES - 1)
        attempts = attempts.begin_at(1, f"process {number}").recover_at(queued(1), 7, HERE)
        assert attempts.due == 7
    assert attempts.has_crashed_out


def test_an_attempt_of_the_same_process_has_not_ended_it() -> None:
    begun = QueueAttempts().follow(1, 5).begin_at(1, HERE)
    assert begun.recover_at(queued(1), 7, HERE) == QueueAttempts(due=5, oldest=1)
    assert begun.recover_at(queued(1), 7, THERE) == QueueAttempts(due=7, oldest=1, crashes=1, until=1)


def test_an_attempt_does_not_wait_for_a_clock_that_was_ahead() -> None:
    failed = QueueAttempts(due=1_000_000_000, oldest=1, failures=1)
    assert failed.recover_at(queued(1), 7, HERE) == msgspec.structs.replace(failed, due=7)
    assert failed.recover_at(queued(1), 700_000_000, HERE) == failed


def test_an_attempt_that_ended_its_process_may_have_taken_everything() -> None:
    crashed = QueueAttempts().follow(1, 5).begin_at(1, THERE).recover_at(queued(1, 2, 3), 7, HERE)
    assert crashed.until == 3
    # It has taken one message only: what has come since is not narrowed.
    assert crashed.begin_at(1, THERE).recover_at(queued(1, 2, 3, 4), 8, HERE).until == 3
    assert crashed.begin_at(1, HERE).succeed(2, 9) == QueueAttempts(due=9, until=3)
    assert QueueAttempts(until=3).begin_at(4, THERE).recover_at(queued(4, 5), 8, HERE).until == 5


def test_crashes_count_without_progress() -> None:
    attempts = QueueAttempts().follow(1, 5)
    for oldest in range(1, 10):
        # Each attempt stores what it took, and then ends its process.
        attempts = attempts.begin_at(oldest, THERE).progress_to(oldest + 1).recover_at(queued(oldest + 1), 7, HERE)
        assert (attempts.crashes, attempts.is_owed, attempts.is_suspect) == (1, True, False)
    for _ in range(2):
        # What is stored while the first message stays in the queue is no progress.
        attempts = attempts.begin_at(10, THERE).progress_to(10).recover_at(queued(10), 7, HERE)
    assert attempts.has_crashed_out
    owed = QueueAttempts(due=7, is_owed=True, crashes=2).begin_at(0, THERE)
    assert owed.progress_to(0).recover_at([], 7, HERE).crashes == 1


def test_the_counts_of_a_message_are_not_those_of_the_next_one() -> None:
    suspect = QueueAttempts(due=7, oldest=1, crashes=2, until=9).begin_at(1, HERE)
    after = suspect.progress_to(2).succeed(2, 9)
    assert (after.crashes, after.until) == (0, 9)
    assert not after.begin_at(2, HERE).is_suspect


def test_what_does_not_count_leaves_the_counts_as_they_were() -> None:
    attempts = QueueAttempts().follow(1, 5).begin_at(1, HERE)
    attempts = fail(attempts, 1, 6)
    assert postpone(attempts.begin_at(1, HERE), 1, 7) == attempts


def test_the_next_message_has_counts_of_its_own() -> None:
    failed = fail(QueueAttempts().follow(1, 5).begin_at(1, HERE), 1, 6)
    # The first one was cancelled: the next one need not wait, and has not failed.
    assert failed.follow(2, 8) == QueueAttempts(due=8)
    assert failed.follow(0, 8) == QueueAttempts()
    assert failed.begin_at(2, HERE).failures == 0


def test_an_attempt_that_has_stored_what_it_took_and_has_not_ended_well_is_made_again() -> None:
    begun = QueueAttempts().follow(1, 5).begin_at(1, HERE)
    for ended in (fail(begun, 0, 6), crash(begun, 0, 6)):
        assert ended.due
        assert ended.is_owed
        assert ended.follow(0, 9) == ended
        assert ended.follow(2, 9) == ended
        assert ended.begin_at(0, HERE).has_taken(0)
        assert ended.begin_at(0, HERE).succeed(0, 9) == QueueAttempts()
    assert not fail(begun, 1, 6).is_owed


def fail(attempts: QueueAttempts, oldest: int, now: int) -> QueueAttempts:
    """End an attempt that has raised."""
    failed = attempts.fail(PAUSES, now)
    return attempts.succeed(oldest, now) if failed is None else failed.end(oldest)


def crash(attempts: QueueAttempts, oldest: int, now: int) -> QueueAttempts:
    """End an attempt with its process."""
    return msgspec.structs.replace(attempts, process=THERE).recover_at(queued(oldest), now, HERE)


def postpone(attempts: QueueAttempts, oldest: int, now: int) -> QueueAttempts:
    """End an attempt that does not count."""
    return attempts.rest(attempts.due).end(oldest)


steps = st.lists(
    st.tuples(st.sampled_from(["queue", "cancel", "begin", "succeed", "fail", "crash", "postpone"]), st.booleans()),
    max_size=60,
)


@given(steps)
def test_while_anything_is_queued_an_attempt_is_due_or_under_way(steps: list[tuple[str, bool]]) -> None:
    attempts, queue, now, last = QueueAttempts(), list[int](), 1, 0
    for step, takes in steps:
        now += 1
        if step == "queue":
            last += 1
            queue.append(last)
        elif step == "cancel" and queue and not attempts.process:
            del queue[0]
        elif step == "begin" and attempts.due and not attempts.process:
            attempts = attempts.begin_at(queue[0] if queue else 0, HERE)
        elif step in ("succeed", "fail", "crash", "postpone") and attempts.process:
            if takes or step == "succeed":
                queue.clear()
            oldest = queue[0] if queue else 0
            end = {"succeed": QueueAttempts.succeed, "fail": fail, "crash": crash, "postpone": postpone}[step]
            attempts = end(attempts, oldest, now)
        attempts = attempts.follow(queue[0] if queue else 0, now)
        if queue or attempts.process:
            assert attempts.due
        if not queue and not attempts.process and not attempts.is_owed:
            assert attempts == QueueAttempts()
