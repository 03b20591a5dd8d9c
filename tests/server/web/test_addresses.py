"""Connections that wait for their peers, without sockets."""

import asyncio
import time
from collections.abc import Callable

import pytest

from plait.errors import TooMany
from plait.web.addresses import Addresses, HalfOpen

TIMEOUT = 60.0


class Peer:
    """A connection that keeps how often it was given up."""

    def __init__(self, host: str | None = "10.0.0.1", given_up: Callable[["Peer"], None] = lambda peer: None) -> None:
        self.host = host
        self.times = 0
        self.gone = asyncio.Event()
        self._given_up = given_up

    def give_up(self) -> None:
        self.times += 1
        self.gone.set()
        self._given_up(self)


async def test_who_waits_too_long_is_given_up_and_again_until_it_leaves() -> None:
    half_open = HalfOpen(Addresses(10), 0.02)
    third = asyncio.Event()
    peer = Peer(given_up=lambda peer: third.set() if peer.times == 3 else None)
    other = Peer()
    assert half_open.admit(peer)
    assert half_open.admit(other)
    half_open.leave(other)
    async with asyncio.timeout(TIMEOUT):
        await third.wait()
    half_open.leave(peer)
    assert not half_open.is_waiting(peer)
    assert other.times == 0


async def test_peers_are_given_up_where_the_next_deadline_is_less_than_half_a_millisecond_ahead() -> None:
    half_open = HalfOpen(Addresses(10), 0.0001)
    third = asyncio.Event()
    peer = Peer(given_up=lambda peer: third.set() if peer.times == 3 else None)
    half_open.wait(peer)
    async with asyncio.timeout(TIMEOUT):
        await third.wait()
    half_open.leave(peer)


async def test_time_that_begins_anew_is_over_after_that_of_others() -> None:
    half_open = HalfOpen(Addresses(10), 0.05)
    order: list[Peer] = []
    peers = [Peer(given_up=order.append) for _ in range(3)]
    for peer in peers:
        half_open.wait(peer)
    half_open.wait(peers[0])
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*(peer.gone.wait() for peer in peers))
    assert order[:3] == [peers[1], peers[2], peers[0]]


async def test_nobody_is_given_up_for_what_the_loop_has_not_read_while_it_was_busy() -> None:
    half_open = HalfOpen(Addresses(10), 0.05)
    peer = Peer()
    half_open.wait(peer)
    time.sleep(1.2)  # noqa: ASYNC251
    # The loop runs what is ready and then the check, which is late; in the next round, what peers have sent is read.
    for _ in range(2):
        await asyncio.sleep(0)
    assert peer.times == 0
    assert half_open.is_waiting(peer)


async def test_an_address_has_so_many_that_wait_and_a_proxys_are_not_counted() -> None:
    addresses = Addresses(2)
    half_open = HalfOpen(addresses, TIMEOUT)
    first, second = Peer(), Peer()
    assert half_open.admit(first)
    assert half_open.admit(second)
    assert not half_open.admit(Peer())
    assert half_open.admit(Peer("10.0.0.2"))
    assert all(half_open.admit(Peer(None)) for _ in range(5))
    with pytest.raises(TooMany, match=r"one address may have 2 connections"):
        addresses.enter("10.0.0.1")
    half_open.leave(first)
    half_open.leave(first)
    addresses.enter("10.0.0.1")
    with pytest.raises(TooMany):
        addresses.enter("10.0.0.1")
    # A socket does not count as a waiting connection: one over the limit is refused by its close code.
    assert half_open.admit(Peer())
    assert not half_open.admit(Peer())
