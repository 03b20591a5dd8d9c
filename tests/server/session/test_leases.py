"""What is open is closed when the rights of its principal end, by the wall clock or because it is disconnected."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cases import each_case

from plait.clock import CLOCK
from plait.errors import Unauthenticated
from plait.session import leases as leases_module
from plait.session.leases import Leases, PrincipalLease
from plait.state.principal import Principal

PATIENCE = 20.0


class WallClock:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> int:
        return time.time_ns() + int(self.ahead * 1e9)


@pytest.fixture
def clock() -> Iterator[WallClock]:
    wall = WallClock()
    CLOCK.use(wall)
    yield wall
    CLOCK.use()


class Opened:
    """Something that is open for a principal."""

    def __init__(
        self, lease: PrincipalLease, user: str | None = "ada", *, left: float | None = None, id: str = ""
    ) -> None:
        self.lease = lease
        self.closed: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        lease.principal = None if user is None else make_principal(user, left)
        lease.open(self._close, connection_id=id)

    def _close(self, code: int, reason: str) -> None:
        self.closed.set_result((code, reason))

    async def end(self) -> tuple[int, str]:
        async with asyncio.timeout(PATIENCE):
            return await self.closed


def make_principal(user: str, left: float | None) -> Principal:
    return Principal(user, expires_at=None if left is None else CLOCK.read_wall() / 1e6 + left)


EXPIRED = (4401, "the token has expired")
DISCONNECTED = (4401, "the server has disconnected this user")


# Expiry


async def test_what_is_open_is_closed_when_its_principal_expires_each_at_its_time() -> None:
    leases = Leases()
    opened = [Opened(leases.begin(), left=left) for left in (0.2, 0.05, 0.1)]
    order: list[int] = []
    for number, each in enumerate(opened):
        each.closed.add_done_callback(lambda _, number=number: order.append(number))  # type: ignore[misc]
    assert [await each.end() for each in opened] == [EXPIRED] * 3
    await asyncio.sleep(0)
    assert order == [1, 2, 0]


async def test_what_is_opened_for_an_expired_principal_is_closed_at_once() -> None:
    assert Opened(Leases().begin(), left=-1.0).closed.result() == EXPIRED


async def test_what_has_ended_is_not_closed_and_is_not_watched() -> None:
    leases = Leases()
    opened = Opened(leases.begin(), left=0.05)
    opened.lease.end()
    await Opened(leases.begin(), left=0.1).end()
    assert not opened.closed.done()
    assert opened.lease._timer is None


async def test_a_renewal_moves_the_expiry() -> None:
    leases = Leases()
    moved, shortened = Opened(leases.begin(), left=0.05), Opened(leases.begin(), left=3600.0)
    moved.lease.renew(make_principal("ada", 3600.0))
    shortened.lease.renew(make_principal("ada", 0.1))
    assert await shortened.end() == EXPIRED
    assert not moved.closed.done()
    moved.lease.renew(make_principal("ada", None))
    assert moved.lease._timer is None


async def test_a_token_is_asked_for_before_the_expiry_and_once() -> None:
    leases = Leases()
    opened, asked = Opened(leases.begin(), left=0.2), list[float]()
    opened.lease.ask_before(0.15, asked.append)
    assert await opened.end() == EXPIRED
    assert len(asked) == 1
    assert 0 < asked[0] <= 0.15


async def test_a_wall_clock_that_is_set_forward_closes_what_expires_then(
    clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "_LONGEST_WAIT", 0.1)
    opened = Opened(Leases().begin(), left=3600.0)
    clock.ahead = 3601.0
    assert await opened.end() == EXPIRED


async def test_a_wall_clock_that_is_set_back_closes_nothing_that_is_valid(clock: WallClock) -> None:
    clock.ahead = 3600.0
    leases = Leases()
    opened = Opened(leases.begin(), left=0.1)
    clock.ahead = 0.0
    await Opened(leases.begin(), left=0.2).end()
    assert not opened.closed.done()


# Disconnecting


async def test_all_that_is_open_for_a_user_is_closed_and_nothing_else() -> None:
    leases = Leases()
    mine, other, anonymous = (
        [Opened(leases.begin(), "ada") for _ in range(3)],
        Opened(leases.begin(), "bob"),
        Opened(leases.begin(), None),
    )
    assert leases.disconnect(("ada", None)) == 3
    assert [each.closed.result() for each in mine] == [DISCONNECTED] * 3
    assert not other.closed.done()
    assert not anonymous.closed.done()
    assert leases.disconnect(("ada", None)) == 0


async def test_connections_are_disconnected_by_their_id() -> None:
    leases = Leases()
    found, other = Opened(leases.begin(), None, id="a"), Opened(leases.begin(), None, id="b")
    assert leases.disconnect((None, "a")) == 1
    assert found.closed.done()
    assert not other.closed.done()


@each_case("target", [("ada", None), (None, "a")])
async def test_what_was_authenticated_before_is_closed_when_it_opens(target: Any) -> None:
    leases = Leases()
    before = leases.begin()
    assert leases.disconnect(target) == 0
    after = leases.begin()
    assert Opened(before, id="a").closed.result() == DISCONNECTED
    assert not Opened(after, id="a").closed.done()


async def test_a_request_that_was_authenticated_before_is_refused() -> None:
    leases = Leases()
    before, other = leases.begin(), leases.begin()
    before.principal, other.principal = Principal("ada"), Principal("bob")
    leases.disconnect(("ada", None))
    with pytest.raises(Unauthenticated):
        before.check()
    other.check()


async def test_disconnections_are_forgotten_when_no_older_authentication_is_under_way() -> None:
    leases = Leases()
    oldest, older = leases.begin(), leases.begin()
    leases.disconnect(("ada", None))
    newer = leases.begin()
    leases.disconnect(("bob", None))
    assert list(leases._disconnected) == [("ada", None), ("bob", None)]
    oldest.end()
    assert len(leases._disconnected) == 2
    older.end()
    assert list(leases._disconnected) == [("bob", None)]
    Opened(newer, "carol")
    assert not leases._disconnected
    leases.disconnect(("ada", None))
    assert not leases._disconnected


async def test_a_socket_that_is_gone_before_it_opens_is_not_kept() -> None:
    leases = Leases()
    lease = leases.begin()
    lease.end()
    lease.begin()
    Opened(lease, left=3600.0)
    assert not leases._open
    assert not leases._pending
