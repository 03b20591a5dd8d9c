"""What is known of a client's pushes, so that none is applied twice."""

import msgspec
from tests.cases import each_case

from plait.errors import Reject
from plait.state.push_log import ClientPushes, PushLog
from plait.store.thread_rows import KNOWN_CLIENTS, ClientRow


def test_of_a_client_of_whom_nothing_is_known_any_positive_ref_is_the_first() -> None:
    client = ClientPushes("a")
    assert [client.is_next(ref) for ref in (-1, 0, 1, 7)] == [False, False, True, True]
    client.expect(7)
    assert (client.ref, client.is_next(7), client.is_next(8)) == (6, True, False)
    client.expect(9)
    assert client.is_next(7)


def test_expecting_no_ref_at_all_says_nothing() -> None:
    client = ClientPushes("a")
    client.expect(0)
    assert client.is_next(5)


def test_the_next_ref_of_a_stored_client_is_known() -> None:
    client = ClientPushes("a", ClientRow("a", 7, b"[]", 0))
    client.expect(3)
    assert [client.is_next(ref) for ref in (1, 7, 8, 9)] == [False, False, True, False]


def test_what_is_stored_with_a_push_says_which_of_the_last_ones_were_refused() -> None:
    client = ClientPushes("a")
    client.expect(1)
    client.refuse(1, Reject("not you", path="/n"))
    client.refuse(2, Reject("nor you"))
    row = client.accept(3)
    assert (row.client, row.ref, msgspec.json.decode(row.refused)) == (
        "a",
        3,
        [[1, "rejected", "not you", "/n"], [2, "rejected", "nor you", None]],
    )
    assert row.at > 1_600_000_000_000_000
    again = ClientPushes("a", row)
    assert again.ref == 3
    refusal = again.refusal(1)
    assert refusal is not None
    assert (refusal.code, refusal.message, refusal.path) == ("rejected", "not you", "/n")
    assert again.refusal(3) is None


def test_a_push_that_is_refused_after_later_ones_were_taken_does_not_bring_back_the_ref() -> None:
    client = ClientPushes("a")
    client.expect(1)
    client.accept(1)
    client.accept(2)
    client.refuse(1, Reject("could not be stored"))
    assert client.ref == 2
    assert client.refusal(1) is not None


@each_case(("last", "ref", "is_known"), [(1, 1, True), (1, 2, False), (1, 0, False), (64, 1, True), (65, 1, False)])
def test_what_became_of_the_last_64_pushes_is_remembered(last: int, ref: int, is_known: bool) -> None:
    client = ClientPushes("a")
    client.expect(1)
    for each in range(1, last + 1):
        client.accept(each)
    assert client.remembers(ref) == is_known


def test_refusals_are_forgotten_with_the_pushes_that_they_are_of() -> None:
    client = ClientPushes("a")
    client.expect(1)
    for ref in range(1, 201):
        client.refuse(ref, Reject("no"))
    assert client.refusal(136) is None
    assert client.refusal(137) is not None
    assert len(msgspec.json.decode(client.accept(201).refused)) == 63


class Rows:
    """The rows of clients in a store, and the ids by which they were read."""

    def __init__(self, *ids: str) -> None:
        self.rows = {id: ClientRow(id, 7, b"[]", 0) for id in ids}
        self.read: list[str] = []

    async def client(self, id: str) -> ClientRow | None:
        self.read.append(id)
        return self.rows.get(id)


async def test_a_client_is_kept_until_its_last_socket_leaves() -> None:
    rows = Rows("a")
    clients = PushLog(rows, rows.rows)
    first = await clients.enter("a")
    second = await clients.enter("a")
    assert (first is second, first.ref, rows.read) == (True, 7, ["a"])
    clients.leave(first)
    assert await clients.enter("a") is second
    clients.leave(second)
    clients.leave(second)
    assert await clients.enter("a") is not second
    assert rows.read == ["a", "a"]


async def test_the_row_of_a_client_that_has_none_is_not_read() -> None:
    rows = Rows("a")
    clients = PushLog(rows, rows.rows)
    assert (await clients.enter("b", "c")).ref == 0
    assert rows.read == []


async def test_a_client_that_was_stored_under_an_older_id_is_found() -> None:
    rows = Rows("old")
    clients = PushLog(rows, rows.rows)
    assert (await clients.enter("new", "old")).ref == 7
    assert rows.read == ["old"]


async def test_every_row_is_looked_for_when_the_stored_clients_are_not_known() -> None:
    rows = Rows("a")
    clients = PushLog(rows, None)
    assert [(await clients.enter(id)).ref for id in "ab"] == [7, 0]
    assert rows.read == ["a", "b"]


async def test_the_row_of_a_client_that_has_pushed_and_left_is_read() -> None:
    rows = Rows()
    clients = PushLog(rows, ())
    writer, reader = await clients.enter("writer"), await clients.enter("reader")
    writer.expect(1)
    rows.rows["writer"] = writer.accept(1)
    clients.leave(writer)
    clients.leave(reader)
    assert [(await clients.enter(id)).ref for id in ("writer", "reader")] == [1, 0]
    assert rows.read == ["writer"]


async def test_when_too_many_clients_have_pushed_to_be_known_every_row_is_looked_for() -> None:
    rows = Rows()
    clients = PushLog(rows, ())
    for number in range(KNOWN_CLIENTS + 1):
        client = await clients.enter(str(number))
        client.expect(1)
        rows.rows[client.id] = client.accept(1)
        clients.leave(client)
    assert rows.read == []
    assert [(await clients.enter(id)).ref for id in ("0", "256", "other")] == [1, 1, 0]
    assert rows.read == ["0", "256", "other"]
