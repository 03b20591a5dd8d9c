"""When the agent is called for what is queued, and when a message is given up."""

from hypothesis import given
from hypothesis import strategies as st

from plait.parts.messages.attempts import CRASHES, FAILURES, Attempts, find_pause

HERE, THERE = "here", "there"


def test_nothing_is_due_before_something_is_queued() -> None:
    assert Attempts().due == 0
    assert Attempts().follow(0, 5) == Attempts()
    assert Attempts().follow(1, 5) == Attempts(due=5)


def test_the_pause_doubles_up_to_five_minutes() -> None:
    assert [find_pause(number) // 1_000_000 for number in (1, 2, 3, 4, 9, 10, 100)] == [1, 2, 4, 8, 256, 300, 300]


def test_the_due_time_stays_while_an_attempt_is_under_way() -> None:
    attempts = Attempts().follow(1, 5).begin(1, HERE)
    assert attempts.is_begun
    assert attempts.due == 5
    assert attempts.follow(2, 9) == attempts
    assert attempts.follow(0, 9) == attempts


def test_a_message_is_given_up_after_five_attempts_that_raised() -> None:
    attempts, now = Attempts().follow(1, 5), 5
    for number in range(1, FAILURES + 1):
        assert not attempts.is_given_up
        attempts = attempts.begin(1, HERE).fail(1, now)
        assert attempts.due == now + find_pause(number)
        now = attempts.due
    assert attempts.is_given_up
    assert attempts.succeed(2, 9) == Attempts(due=9)
    assert attempts.succeed(0, 9) == Attempts()


def test_a_message_is_given_up_after_three_attempts_that_ended_the_process() -> None:
    attempts = Attempts().follow(1, 5)
    for number in range(CRASHES):
        assert not attempts.is_given_up
        assert attempts.is_suspect == (number == CRASHES - 1)
        attempts = attempts.begin(1, f"process {number}").recover(1, 7, HERE)
        assert attempts.due == 7
    assert attempts.is_given_up


def test_an_attempt_of_the_same_process_has_not_ended_it() -> None:
    begun = Attempts().follow(1, 5).begin(1, HERE)
    assert begun.recover(1, 7, HERE) == Attempts(due=5, oldest=1)
    assert begun.recover(1, 7, THERE) == Attempts(due=7, oldest=1, crashes=1)


def test_what_does_not_count_leaves_the_counts_as_they_were() -> None:
    attempts = Attempts().follow(1, 5).begin(1, HERE).fail(1, 6)
    assert attempts.begin(1, HERE).postpone(1) == attempts


def test_the_next_message_has_counts_of_its_own() -> None:
    failed = Attempts().follow(1, 5).begin(1, HERE).fail(1, 6)
    # The first one was cancelled: the next one need not wait, and has not failed.
    assert failed.follow(2, 8) == Attempts(due=8)
    assert failed.follow(0, 8) == Attempts()
    assert failed.begin(2, HERE).failures == 0


def test_an_attempt_that_has_stored_what_it_took_and_has_not_ended_well_is_made_again() -> None:
    begun = Attempts().follow(1, 5).begin(1, HERE)
    for ended in (begun.fail(0, 6), begun.crash(0, 6)):
        assert ended.due
        assert ended.is_owed
        assert ended.follow(0, 9) == ended
        assert ended.follow(2, 9) == ended
        assert ended.begin(0, HERE).has_taken(0)
        assert ended.begin(0, HERE).succeed(0, 9) == Attempts()
    assert not begun.fail(1, 6).is_owed


steps = st.lists(
    st.tuples(st.sampled_from(["queue", "cancel", "begin", "succeed", "fail", "crash", "postpone"]), st.booleans()),
    max_size=60,
)


@given(steps)
def test_while_anything_is_queued_an_attempt_is_due_or_under_way(steps: list[tuple[str, bool]]) -> None:
    attempts, queue, now, last = Attempts(), list[int](), 1, 0
    for step, takes in steps:
        now += 1
        if step == "queue":
            last += 1
            queue.append(last)
        elif step == "cancel" and queue and not attempts.is_begun:
            del queue[0]
        elif step == "begin" and attempts.due and not attempts.is_begun:
            attempts = attempts.begin(queue[0] if queue else 0, HERE)
        elif step in ("succeed", "fail", "crash", "postpone") and attempts.is_begun:
            if takes or step == "succeed":
                queue.clear()
            oldest = queue[0] if queue else 0
            times = () if step == "postpone" else (now,)
            attempts = getattr(attempts, step)(oldest, *times)
        attempts = attempts.follow(queue[0] if queue else 0, now)
        if queue or attempts.is_begun:
            assert attempts.due
        if not queue and not attempts.is_begun and not attempts.is_owed:
            assert attempts == Attempts()
