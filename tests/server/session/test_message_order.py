import random

from plait.session.receive_queue import MessageOrder


def test_messages_are_taken_one_after_the_other() -> None:
    order = MessageOrder()
    order.expect(1)
    assert [order.take() for _ in range(3)] == [True, True, True]
    assert order.taken == 3


def test_what_comes_after_a_refused_message_is_not_taken_before_that_has_come_again() -> None:
    order = MessageOrder()
    order.expect(1)
    assert order.take()
    assert order.refuse() == 1
    assert [order.take(), order.refuse(), order.take()] == [False, 1, False]
    order.expect(2)
    assert [order.take() for _ in range(4)] == [True] * 4
    assert order.taken == 5


def test_what_was_taken_and_comes_again_is_not_taken_twice() -> None:
    order = MessageOrder()
    order.expect(1)
    assert [order.take() for _ in range(3)] == [True] * 3
    order.expect(2)
    assert [order.take() for _ in range(3)] == [False, False, True]
    assert order.taken == 4


def test_a_client_that_does_not_count_loses_what_is_refused_and_nothing_else() -> None:
    order = MessageOrder()
    assert order.take()
    assert order.refuse() is None
    assert order.take()
    order.expect(11)
    assert order.take()
    assert order.taken == 11


def test_whatever_is_refused_a_client_that_sends_again_from_there_is_heard_once_and_in_order() -> None:
    for seed in range(200):
        dice = random.Random(seed)
        order, heard, start = MessageOrder(), list[int](), 1
        while len(heard) < 50:
            order.expect(start)
            last = min(50, start + dice.randrange(20))
            for number in range(start, last + 1):
                if dice.random() < 0.2:
                    order.refuse()
                elif order.take():
                    heard.append(number)
            # The client's information may be old at that point.
            start = dice.randint(start, order.taken + 1)
        assert heard == list(range(1, 51))
