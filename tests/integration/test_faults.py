"""When the disk, the store's file or an author's hook fails, the one who asked is told, and nothing else is lost."""

import asyncio
import logging
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from tests.integration.socket_client import TIMEOUT, CallError, Client, Closed, connected, http
from tests.running import Process, running
from tests.server.store.sqlite.test_store import dump
from tests.store_rows import find_space
from tests.told import INTERNAL

from plait import Connection, MemoryStore, Plait, Source, SqliteStore, Thread, TurnTimeout, rpc

REJECTED = "State update rejected"
SECRET = "the-password-in-the-message"
GIVEN_AWAY = (SECRET, "Traceback", 'File "', ".py", "/home/", "/tmp/", "sqlite3.")
HOOKS = (
    "connection_tags",
    "should_be_readonly",
    "should_send_protocol_messages",
    "on_connect",
    "on_message",
    "on_close",
    "on_state_changed",
    "on_request",
    "on_error",
    "on_start",
    "on_stop",
    "on_destroyed",
    "validate_state_change",
)


class Shaky(Thread[Any]):
    """Fails as its name says: `on_connect.raise` raises in the hook `on_connect`, `on_connect.hang` hangs there."""

    initial_state = {"n": 0}  # noqa: RUF012
    clients_may_destroy = True
    turn_timeout = 0.2
    idle_timeout = 0.2

    def __init__(self) -> None:
        self._closed = 0

    async def trouble(self, hook: str) -> None:
        """Fail in the hook that the thread's name asks for."""
        if self.name == f"{hook}.raise":
            raise RuntimeError(f"{SECRET} in {__file__}")
        if self.name == f"{hook}.hang":
            await asyncio.Event().wait()

    def validate_state_change(self, next_state: Any, source: Source) -> None:
        if self.name == "validate_state_change.raise" and source != "server":
            raise RuntimeError(f"{SECRET} in {__file__}")

    async def on_start(self) -> None:
        await self.trouble("on_start")

    async def on_stop(self) -> None:
        await self.trouble("on_stop")

    async def on_destroyed(self) -> None:
        await self.trouble("on_destroyed")

    async def connection_tags(self, connection: Connection, request: Request) -> list[str]:
        await self.trouble("connection_tags")
        return []

    async def should_be_readonly(self, connection: Connection, request: Request) -> bool:
        await self.trouble("should_be_readonly")
        return False

    async def should_send_protocol_messages(self, connection: Connection, request: Request) -> bool:
        await self.trouble("should_send_protocol_messages")
        return True

    async def on_connect(self, connection: Connection, request: Request) -> None:
        await self.trouble("on_connect")

    async def on_message(self, connection: Connection, data: str | bytes) -> None:
        await self.trouble("on_message")
        if self.name.startswith("on_error"):
            raise RuntimeError(SECRET)
        connection.send(data)

    async def on_close(self, connection: Connection, code: int, reason: str) -> None:
        self._closed += 1
        await self.trouble("on_close")

    async def on_state_changed(self, state: Any, source: Source) -> None:
        await self.trouble("on_state_changed")

    async def on_error(self, error: BaseException, connection: Connection | None) -> None:
        super().on_error(error, connection)
        await self.trouble("on_error")

    async def on_request(self, request: Request) -> Response:
        await self.trouble("on_request")
        return JSONResponse("ok")

    @rpc
    async def echo(self, value: Any) -> Any:
        await self.trouble("echo")
        return value

    @rpc
    def add(self) -> int:
        self.set_state(lambda state: {**state, "n": state["n"] + 1})
        return self.version

    @rpc
    def closed(self) -> int:
        return self._closed

    @rpc
    def read(self) -> str:
        return Path("/nowhere/secret.txt").read_text()

    @rpc(concurrent=True)
    async def wait(self) -> None:
        await asyncio.Event().wait()

    @rpc
    async def stream(self) -> AsyncIterator[int]:
        yield 1
        raise RuntimeError("no more")


class Told:
    """Everything that clients received in a test."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.received: list[str] = []

    @asynccontextmanager
    async def connected(self, thread: str) -> AsyncIterator[Client]:
        """Join a thread, given as kind and name."""
        async with connected(self.address, f"/threads/{thread}") as client:
            try:
                yield client
            finally:
                self.received += [repr(each) for each in client.received]
        self.received.append(client.socket.close_reason or "")

    async def request(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        """Send an HTTP request, and return the status and the JSON of the answer."""
        async with http(self.address) as web:
            answer = await web.request(method, f"/threads/{path}", **options)
        self.received += [answer.text, repr(answer.headers)]
        return answer.status_code, answer.json() if answer.content else None

    def check(self) -> None:
        """Fail if a client has received data that it must not see."""
        for text in self.received:
            for each in GIVEN_AWAY:
                assert each not in text


class Watch(logging.Handler):
    """Sets an event when a text is logged."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen = asyncio.Event()
        self._text = text

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in self.format(record):
            self.seen.set()


@contextmanager
def watching(text: str) -> Iterator[asyncio.Event]:
    """Yield an event that is set when `text` is logged."""
    watch = Watch(text)
    logging.getLogger("plait").addHandler(watch)
    try:
        yield watch.seen
    finally:
        logging.getLogger("plait").removeHandler(watch)


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    """Serve threads that fail, and look in the end whether clients were told too much."""
    async with running(Plait(Shaky, store=MemoryStore(), shutdown_timeout=2)) as address:
        told = Told(address)
        yield told
    told.check()


@asynccontextmanager
async def serving(store: Path | SqliteStore) -> AsyncIterator[Told]:
    """Serve threads from a file, and look in the end whether clients were told too much."""
    app = Plait(Shaky, store=store if isinstance(store, SqliteStore) else f"sqlite:///{store}")
    async with running(app) as address:
        told = Told(address)
        yield told
    told.check()


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a store's file as anybody may."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=TIMEOUT)) as db:
        yield db


# The disk and the store's file


async def test_a_full_disk_rejects_changes_and_loses_none_that_was_acknowledged(tmp_path: Path) -> None:
    store = tmp_path / "plait.db"
    large = {"text": "x" * 100_000}
    with Process("tests.integration.apps:app", cwd=tmp_path) as server:
        told = Told(server.address)
        async with told.connected("disk/one") as writer, told.connected("disk/one") as reader:
            await writer.push({"n": 1})
            assert await writer.call("sync") == 1
            await writer.call("fill", _log_size(tmp_path) + 1000)

            await writer.push(large)
            await writer.until(lambda writer: writer.refusals == [REJECTED])
            await writer.until_state({"n": 1})
            with pytest.raises(CallError, match="disk/one could not be written"):
                await writer.call("set", large)
            status, answer = await told.request("PUT", "disk/one", json=large)
            assert (status, answer["error"]["code"]) == (503, "store_error")
            async with told.connected("disk/one") as late:
                await late.until_state({"n": 1})
            assert await told.request("GET", "disk/one") == (200, {"n": 1})
            assert large not in reader.states

            await writer.call("fill", None)
            await writer.push({"n": 2})
            assert await writer.call("sync") == 2
            assert await writer.call("set", large) == 3
            await reader.until_state(large)
            assert reader.states == [{"n": 0}, {"n": 1}, {"n": 2}, large]
        server.end()
        server.start()
        told.address = server.address
        assert await told.request("GET", "disk/one") == (200, large)
        told.check()
    with database(store) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_a_full_disk_is_told_until_a_write_succeeds_and_is_logged_once_and_then_each_minute(
    tmp_path: Path,
) -> None:
    large = {"text": "x" * 100_000}
    with Process("tests.integration.apps:app", cwd=tmp_path) as server:
        told = Told(server.address)
        async with told.connected("disk/one") as client, http(server.address) as web:
            await client.push({"n": 1})
            assert await client.call("sync") == 1
            assert (await web.get("/readyz")).status_code == 200
            await client.call("fill", _log_size(tmp_path) + 1000)
            for number in range(100):
                status, _ = await told.request("PUT", "disk/one", json=large)
                assert status == 503
                await client.push(large)
                await client.until(lambda client, number=number: len(client.refusals) > number)
                async with told.connected(f"disk/another-{number}") as other:
                    assert await other.until_closed() == 1013
            answer = await web.get("/readyz")
            assert (answer.status_code, answer.json()["writes"]) == (200, "refused")
            lines = server.log.read_text().splitlines()
            assert len([line for line in lines if "could not be written" in line]) == 1
            await client.call("fill", None)
            assert await client.call("set", large) == 2
            assert (await web.get("/readyz")).json()["writes"] == "accepted"

            await client.call("fill", 10)
            with pytest.raises(CallError):
                await client.call("set", {})
            assert (await web.get("/readyz")).json()["writes"] == "refused"
            await client.call("fill", None)
            # Also without a client whose change could show that writes succeed.
            async with asyncio.timeout(TIMEOUT):
                while (await web.get("/readyz")).json()["writes"] == "refused":
                    pass
        told.check()
    assert "the store can be written again" in server.log.read_text()


def _delete(store: Path) -> None:
    store.unlink()


def _delete_log(store: Path) -> None:
    store.with_name(store.name + "-wal").unlink()


def _replace(store: Path) -> None:
    copy = store.with_name("copy.db")
    copy.write_bytes(store.read_bytes())
    copy.replace(store)


def _move_away(store: Path) -> None:
    store.rename(store.with_name("away.db"))


async def until_refused(told: Told) -> int:
    """Change `shaky/one` until that is refused, which it is within milliseconds; returns the last state's number."""
    async with asyncio.timeout(TIMEOUT):
        while (answer := await told.request("POST", "shaky/one/rpc/add"))[0] == 200:
            pass
    assert answer[1]["error"]["code"] == "store_error"
    number: int = (await told.request("GET", "shaky/one"))[1]["n"]
    return number


@pytest.mark.parametrize("harm", [_delete, _delete_log, _replace, _move_away])
async def test_nothing_is_acknowledged_when_the_stores_file_is_not_at_its_path(
    tmp_path: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "plait.db"
    async with serving(store) as told, told.connected("shaky/one") as client, http(told.address) as web:
        assert await client.call("add") == 1
        assert (await web.get("/readyz")).status_code == 200
        await asyncio.to_thread(harm, store)
        acknowledged = await until_refused(told)
        for _ in range(5):
            with pytest.raises(CallError, match="shaky/one could not be written: the store's file was deleted or"):
                await client.call("add")
        assert (await told.request("GET", "shaky/one"))[1] == {"n": acknowledged}
        answer = await web.get("/readyz")
        told.received.append(answer.text)
        assert (answer.status_code, answer.json()["writes"]) == (200, "refused")
    lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    # Once while it runs, and where the changes of the lost file are when it has ended.
    kept = [] if harm is _delete_log else [f"the last changes of the lost file {store} are in {store}-wal.lost"]
    assert lines[1:] == kept
    assert str(store) in lines[0]


async def test_a_server_that_nobody_writes_to_tells_that_its_stores_file_is_gone(tmp_path: Path) -> None:
    async with serving(tmp_path / "plait.db") as told, http(told.address) as web:
        assert (await web.get("/readyz")).json()["writes"] == "accepted"
        (tmp_path / "plait.db").rename(tmp_path / "away.db")
        assert (await web.get("/readyz")).json()["writes"] == "refused"


async def test_a_new_thread_on_a_full_disk_is_refused_and_made_when_there_is_space(tmp_path: Path) -> None:
    with Process("tests.integration.apps:app", cwd=tmp_path) as server:
        told = Told(server.address)
        async with told.connected("disk/one") as client:
            await client.call("fill", 10)
            async with told.connected("disk/two") as other:
                assert await other.until_closed() == 1013
            status, answer = await told.request("PUT", "disk/two", json={"n": 5})
            assert (status, answer["error"]["code"]) == (503, "store_error")
            await client.call("fill", None)
            async with told.connected("disk/two") as other:
                await other.until_state({"n": 0})
        told.check()


async def test_a_database_that_somebody_has_locked_for_long_rejects_changes_and_serves_the_rest(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "plait.db", lock_timeout=0.1)
    async with serving(store) as told, told.connected("shaky/one") as client:
        assert await client.call("add") == 1
        with database(tmp_path / "plait.db") as db:
            db.execute("BEGIN IMMEDIATE")
            await client.push({"n": 5})
            answer = await client.begin("add")
            async with told.connected("shaky/one") as other:
                await other.until_state({"n": 1})
                await client.until(lambda client: client.refusals == [REJECTED])
                await client.until_state({"n": 1})
                with pytest.raises(CallError, match="shaky/one could not be written: database is locked"):
                    await answer
                assert await other.call("echo", 1) == 1
            db.execute("ROLLBACK")
        assert await client.call("add") == 2
        assert await told.request("GET", "shaky/one") == (200, {"n": 2})


async def test_a_database_that_is_locked_for_a_moment_delays_changes_and_nothing_else(tmp_path: Path) -> None:
    async with serving(tmp_path / "plait.db") as told, told.connected("shaky/one") as client:
        with database(tmp_path / "plait.db") as db:
            db.execute("BEGIN IMMEDIATE")
            answer = await client.begin("add")
            async with told.connected("shaky/one") as other:
                await other.until_state({"n": 0})
            assert await told.request("GET", "shaky/one") == (200, {"n": 0})
            db.execute("ROLLBACK")
        assert await answer == 1
        assert client.state == {"n": 1}


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("UPDATE rows SET value = '{' WHERE part = '~s'", id="a snapshot is no JSON"),
        pytest.param("UPDATE rows SET value = '{' WHERE part = '~c' AND key = 2", id="a change is none"),
        pytest.param("DELETE FROM rows WHERE part = '~c' AND key = 2", id="a change is missing"),
        pytest.param(
            "UPDATE rows SET value = json_set(value, '$.ops[0].op', 'remove') WHERE part = '~c' AND key = 2",
            id="a change does not fit",
        ),
    ],
)
async def test_a_thread_that_cannot_be_read_is_an_error_of_its_own_and_is_left_as_it_is(
    tmp_path: Path, damage: str
) -> None:
    store = tmp_path / "plait.db"
    async with serving(store) as told:
        for name in ("good", "bad"):
            async with told.connected(f"shaky/{name}") as client:
                for _ in range(3):
                    await client.call("add")
    with database(store) as db:
        assert db.execute(f"{damage} AND thread = ?", (find_space(db, "bad"),)).rowcount == 1
    before = dump(store)
    async with serving(store) as told:
        async with told.connected("shaky/bad") as client:
            assert await client.until_closed() in (1011, 1013)
            assert "shaky/bad cannot be read" in (client.socket.close_reason or "")
            assert client.states == []
        for method, path in (("GET", ""), ("PUT", ""), ("POST", "/rpc/add")):
            status, answer = await told.request(method, f"shaky/bad{path}", json={})
            assert (status, answer["error"]["code"]) == (500, "corrupt_thread")
        async with told.connected("shaky/good") as client:
            await client.until_state({"n": 3})
    assert dump(store) == before


async def test_a_damaged_page_is_an_error_to_those_whose_threads_are_on_it(tmp_path: Path) -> None:
    store = tmp_path / "plait.db"
    texts = [f"text {n}.".ljust(1000, "x") for n in range(100)]
    async with serving(store) as told:
        for n, text in enumerate(texts):
            await told.request("PUT", f"shaky/{n}", json=text)
    data = bytearray(store.read_bytes())
    for match in re.finditer(rb"text 77\.", bytes(data)):
        start = match.start() // 4096 * 4096
        data[start : start + 4096] = b"\xff" * 4096
    store.write_bytes(data)
    async with serving(store) as told:
        answers = [await told.request("GET", f"shaky/{n}") for n in range(100)]
        bad = {n for n, (status, _) in enumerate(answers) if status != 200}
        assert 77 in bad
        assert len(bad) < 50
        for n, (status, answer) in enumerate(answers):
            if n in bad:
                assert (status, answer["error"]["code"]) in ((503, "store_error"), (500, "corrupt_thread"))
            else:
                assert answer == texts[n]


# Hooks that raise


@pytest.mark.parametrize("hook", ["connection_tags", "should_be_readonly", "should_send_protocol_messages"])
async def test_a_hook_that_raises_before_the_connection_is_in_closes_it_and_shows_it_nothing(
    told: Told, hook: str
) -> None:
    for way in ("raise", "hang"):
        async with told.connected(f"shaky/{hook}.{way}") as client:
            assert await client.until_closed() == 1011
            assert client.received == []


@pytest.mark.parametrize("way", ["raise", "hang"])
async def test_an_on_connect_that_fails_closes_the_connection_with_1011(told: Told, way: str) -> None:
    async with told.connected(f"shaky/on_connect.{way}") as client:
        with suppress(Closed):
            await client.send("too early")
        assert await client.until_closed() == 1011
        assert client.messages == []
    assert (await told.request("POST", f"shaky/on_connect.{way}/rpc/echo", json={"args": [1]})) == (200, {"result": 1})


@pytest.mark.parametrize("way", ["raise", "hang"])
async def test_an_on_start_that_fails_refuses_everybody(told: Told, way: str) -> None:
    for _ in range(2):
        async with told.connected(f"shaky/on_start.{way}") as client:
            assert await client.until_closed() == 1011
            assert client.received == []
        status, answer = await told.request("POST", f"shaky/on_start.{way}/rpc/echo", json={"args": [1]})
        assert (status, answer["error"]["code"]) == ((500, "internal") if way == "raise" else (504, "turn_timeout"))


@pytest.mark.parametrize("hook", ["on_message", "on_error", "on_close", "on_state_changed"])
@pytest.mark.parametrize("way", ["raise", "hang"])
async def test_a_hook_that_fails_takes_nobody_with_it(
    told: Told, hook: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    thread = f"shaky/{hook}.{way}"
    async with told.connected(thread) as client, told.connected(thread) as other:
        await client.send("hello")
        assert await client.call("echo", 1) == 1
        assert await client.call("add") == 1
        await other.until_state({"n": 1})
        await client.close()
        async with asyncio.timeout(TIMEOUT):
            while await other.call("closed") == 0:
                pass
        assert await other.call("add") == 2
        await other.until_state({"n": 2})
        assert await told.request("GET", thread) == (200, {"n": 2})
    assert (SECRET if way == "raise" else f"{hook} has run for") in caplog.text


async def test_a_validate_state_change_that_raises_rejects_and_says_nothing(told: Told) -> None:
    async with told.connected("shaky/validate_state_change.raise") as client:
        await client.push({"n": 5})
        await client.until(lambda client: len(client.states) == 2)
        assert (client.refusals, client.state) == ([REJECTED], {"n": 0})
        assert await client.call("add") == 1


async def test_a_validate_state_change_that_raises_over_http_says_nothing(told: Told) -> None:
    status, answer = await told.request("PUT", "shaky/validate_state_change.raise", json={"n": 5})
    assert status in (409, 500)
    assert set(answer) == {"error"}
    assert (await told.request("GET", "shaky/validate_state_change.raise"))[0] == 404
    assert await told.request("POST", "shaky/validate_state_change.raise/rpc/add") == (200, {"result": 1})


@pytest.mark.parametrize("way", ["raise", "hang"])
async def test_an_on_request_that_fails_answers_with_an_error(told: Told, way: str) -> None:
    status, answer = await told.request("GET", f"shaky/on_request.{way}/page")
    assert (status, answer["error"]["code"]) == ((500, "internal") if way == "raise" else (504, "turn_timeout"))
    assert await told.request("POST", f"shaky/on_request.{way}/rpc/echo", json={"args": [1]}) == (200, {"result": 1})


@pytest.mark.parametrize("way", ["raise", "hang"])
async def test_a_should_be_readonly_that_fails_answers_a_request_with_an_error(told: Told, way: str) -> None:
    for method, path in (("PUT", ""), ("POST", "/rpc/add")):
        status, answer = await told.request(method, f"shaky/should_be_readonly.{way}{path}", json={})
        assert (status, answer["error"]["code"]) == ((500, "internal") if way == "raise" else (504, "turn_timeout"))
    assert (await told.request("GET", f"shaky/should_be_readonly.{way}"))[0] == 404


@pytest.mark.parametrize("way", ["raise", "hang"])
async def test_an_on_stop_that_fails_does_not_keep_the_thread_from_stopping(told: Told, way: str) -> None:
    thread = f"shaky/on_stop.{way}"
    with watching(SECRET if way == "raise" else "on_stop has run for") as logged:
        async with told.connected(thread) as client:
            assert await client.call("add") == 1
        await asyncio.wait_for(logged.wait(), TIMEOUT)
    async with told.connected(thread) as client:
        await client.until_state({"n": 1})
        # It is another instance, which has not seen the first connection.
        assert await client.call("closed") == 0


@pytest.mark.parametrize("way", ["raise", "hang"])
async def test_an_on_destroyed_that_fails_does_not_keep_the_thread_from_ending(
    told: Told, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    thread = f"shaky/on_destroyed.{way}"
    async with told.connected(thread) as client:
        assert await client.call("add") == 1
        assert await told.request("DELETE", thread) == (204, None)
        assert await client.until_closed() == 4410
    assert (await told.request("GET", thread))[0] == 404
    assert await told.request("POST", f"{thread}/rpc/add") == (200, {"result": 1})
    assert (SECRET if way == "raise" else "on_destroyed took too long") in caplog.text


async def test_an_rpc_that_hangs_is_cancelled_and_logged_with_its_stack_and_the_next_goes_on(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    async with told.connected("shaky/echo.hang") as client:
        hanging = await client.begin("echo", 1)
        following = await client.begin("add")
        with pytest.raises(CallError, match="rpc echo took too long"):
            await asyncio.wait_for(hanging, TIMEOUT)
        assert await asyncio.wait_for(following, TIMEOUT) == 1
        await client.until_state({"n": 1})
    (line,) = [record for record in caplog.records if "has run for" in record.getMessage()]
    assert line.levelno == logging.ERROR
    assert "await asyncio.Event().wait()" in line.getMessage()
    assert "in trouble" in line.getMessage()


async def test_a_handle_raises_turn_timeout() -> None:
    async with Plait(Shaky, store=MemoryStore()) as app:
        thread = app.thread(Shaky, "echo.hang")
        with pytest.raises(TurnTimeout):
            await asyncio.wait_for(thread.call(Shaky.echo, 1), TIMEOUT)
        assert await thread.call(Shaky.add) == 1


async def test_an_rpc_that_raises_tells_only_an_id(told: Told) -> None:
    async with told.connected("shaky/one") as client:
        for method in ("read", "stream"):
            with pytest.raises(CallError) as raised:
                await client.call(method)
            assert INTERNAL.fullmatch(str(raised.value))
    status, answer = await told.request("POST", "shaky/one/rpc/read")
    assert (status, answer["error"]["code"]) == (500, "call_failed")
    assert INTERNAL.fullmatch(answer["error"]["message"])


async def test_an_initial_state_that_raises_refuses_everybody_and_is_asked_again() -> None:
    # The first is asked for when the app is built.
    answers: list[Any] = [{"n": 0}, RuntimeError(SECRET), {1, 2}, object(), {"n": 1}]

    class Late(Thread[Any]):
        @staticmethod
        def initial_state() -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    async with running(Plait(Late, store=MemoryStore())) as address:
        told = Told(address)
        statuses = [(await told.request("PUT", "late/one", json={"n": 5}))[0] for _ in range(4)]
        assert statuses[0] == 500
        assert statuses[-1] == 200
        told.check()


# Inside


def _log_size(folder: Path) -> int:
    """Return the size of the store's log, to which each transaction is appended."""
    return max(file.stat().st_size for file in folder.glob("*-wal"))


def test_these_tests_know_every_hook() -> None:
    hooks = {name for name, value in vars(Thread).items() if callable(value) and not name.startswith("_")}
    called = {"set_state", "edit", "update", "history", "at", "revert", "undo", "connections", "broadcast", "emit"}
    called |= {
        "presence",
        "set_presence",
        "thread",
        "transaction",
        "destroy",
        "splice",
        "append",
        "redo",
        "authors",
        "terminate",
    }
    # The tests of pushes, of terminated threads, of cards and of tasks know these four.
    assert hooks - called == {*HOOKS, "resolve_conflict", "on_terminated", "card", "on_task_end"}
