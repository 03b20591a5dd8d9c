"""Callbacks: who is called, and who no more."""

from plait_client.listeners import Listeners


def test_a_callback_is_called_as_often_as_it_is_there() -> None:
    got: list[int] = []
    listeners = Listeners()
    removes = [listeners.add("goal", got.append) for _ in range(2)]
    listeners.call("goal", 1)
    assert got == [1, 1]
    removes[1]()
    listeners.call("goal", 2)
    assert got == [1, 1, 2]


def test_ending_one_registration_twice_leaves_another_of_the_same_callback() -> None:
    got: list[int] = []
    listeners = Listeners()
    remove = listeners.add("goal", got.append)
    listeners.add("goal", got.append)
    remove()
    remove()
    listeners.call("goal", 1)
    assert got == [1]
