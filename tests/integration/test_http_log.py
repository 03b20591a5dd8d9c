"""A thread's log over HTTP: its earlier states and its changes; and the JavaScript client that servers hand out."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cases import each_case
from tests.integration.native_client import joined, put
from tests.integration.socket_client import http
from tests.integration.test_http import error_of
from tests.running import begin, running

from plait import MemoryStore, Plait, Principal, Retention, Thread, ThreadKey, current, rpc

pytestmark = pytest.mark.relayed(in_soak=True)

PAGE = "/threads/page/one"
BRIEF = "/threads/brief/one"


class Page(Thread[dict[str, Any]]):
    """Keeps its whole log, and undoes changes of a source."""

    initial_state = {"n": 0}  # noqa: RUF012

    @rpc
    def set(self, n: Any) -> int:
        self.set_state({"n": n})
        return self.version

    @rpc
    async def undo_theirs(self, source: str) -> int | None:
        return await self.undo(source)

    @rpc
    def who(self) -> str:
        connection = current().connection
        assert connection is not None
        return connection.id


class Brief(Thread[dict[str, Any]]):
    """Keeps little of its log: each of its texts makes a snapshot."""

    initial_state = {"text": ""}  # noqa: RUF012
    retention = Retention(changes=2)


class Empty(Thread[Any]):
    """Has no state until one is set."""


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the threads of this file, which keep nothing unless a store is given."""
    app = Plait(Page, Brief, Empty, **{"store": MemoryStore(), **settings})
    async with running(app) as address, http(address) as web:
        await begin(app, Page)
        yield web


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(store=f"sqlite:///{tmp_path}/plait.db") as web:
        yield web


async def epoch_of(web: httpx.AsyncClient, path: str) -> str:
    tag: str = (await web.get(path)).headers["etag"]
    return tag.strip('"').rpartition(":")[0]


async def written(web: httpx.AsyncClient, path: str = PAGE, count: int = 3) -> str:
    """Set the state to some numbers, one version each; returns the epoch."""
    for n in range(1, count + 1):
        assert (await web.put(path, json={"n": n})).json()["version"] == n
    return await epoch_of(web, path)


async def shortened(web: httpx.AsyncClient) -> str:
    """Set a large state with a short log to six texts; return the epoch."""
    for letter in "abcdef":
        assert (await web.put(BRIEF, json={"text": letter * 5000})).status_code == 200
    return await epoch_of(web, BRIEF)


# States as they were


async def test_each_version_that_is_kept_can_be_had_with_its_etag(web: httpx.AsyncClient) -> None:
    epoch = await written(web)
    for version in (0, 1, 2, 3):
        answer = await web.get(PAGE, params={"at": version})
        assert (answer.status_code, answer.json()) == (200, {"n": version})
        assert answer.headers["etag"] == f'"{epoch}:{version}"'
        assert answer.headers["content-type"] == "application/json"


async def test_a_version_that_is_to_come_is_404(web: httpx.AsyncClient) -> None:
    await written(web)
    for version in (4, 2**63, 10**30):
        assert error_of(await web.get(PAGE, params={"at": version})) == (404, "not_found")
    await web.put(PAGE, json={"n": 4})
    assert (await web.get(PAGE, params={"at": 4})).json() == {"n": 4}


async def test_a_version_that_is_forgotten_is_404_and_those_after_it_are_there(web: httpx.AsyncClient) -> None:
    await shortened(web)
    answers = [await web.get(BRIEF, params={"at": version}) for version in range(7)]
    assert [answer.status_code for answer in answers] == [404] * 4 + [200] * 3
    assert error_of(answers[0]) == (404, "not_found")
    assert [answer.json()["text"][0] for answer in answers[4:]] == ["d", "e", "f"]


@each_case("version", ["", "-1", "+1", "1.0", "1e0", "one", " 1", "²", "1" * 5000])
async def test_what_is_no_version_is_422(web: httpx.AsyncClient, version: str) -> None:
    answer = await web.get(PAGE, params={"at": version})
    assert error_of(answer) == (422, "invalid_arguments")
    assert answer.json()["error"]["path"] == "/at"


async def test_a_thread_without_a_state_has_none_at_any_version(web: httpx.AsyncClient) -> None:
    assert error_of(await web.get("/threads/empty/one?at=0")) == (404, "not_found")
    await web.put("/threads/empty/one", content="null")
    assert error_of(await web.get("/threads/empty/one?at=0")) == (404, "not_found")
    assert (await web.get("/threads/empty/one?at=1")).text == "null"


# Changes


async def test_changes_are_all_that_are_kept_with_their_sources_and_times(web: httpx.AsyncClient) -> None:
    before = time.time()
    await web.post(f"{PAGE}/rpc/set", json={"args": [1]})
    async with joined(web.base_url.netloc.decode(), PAGE, "a") as client:
        id = await client.call("who")
        await client.push(put("/n", 2))
        await client.until(lambda client: not client.pending)
        assert await client.call("undo_theirs", id) == 3
    await web.put(PAGE, json={"n": 4})
    body = (await web.get(f"{PAGE}/changes")).json()
    assert set(body) == {"epoch", "version", "more", "changes"}
    assert (body["epoch"], body["version"], body["more"]) == (await epoch_of(web, PAGE), 4, False)
    assert [(each["version"], each["ops"]) for each in body["changes"]] == [
        (1, [put("/n", 1)]),
        (2, [put("/n", 2)]),
        (3, [put("/n", 1)]),
        (4, [put("/n", 4)]),
    ]
    *sources, last = [each["source"] for each in body["changes"]]
    assert sources == ["server", id, f"undo 2 {id}"]
    assert last.startswith("http-")
    times = [each["at"] for each in body["changes"]]
    assert times == sorted(times)
    assert before - 0.001 <= times[0] <= times[-1] <= time.time() + 0.001


async def test_changes_since_a_version_are_those_after_it(web: httpx.AsyncClient) -> None:
    epoch = await written(web)
    for since in range(4):
        body = (await web.get(f"{PAGE}/changes", params={"since": f"{epoch}:{since}"})).json()
        assert (body["epoch"], body["version"]) == (epoch, 3)
        assert [each["version"] for each in body["changes"]] == [*range(since + 1, 4)]
        assert [each["ops"] for each in body["changes"]] == [[put("/n", n)] for n in range(since + 1, 4)]


async def test_a_thread_that_has_not_changed_has_no_changes(web: httpx.AsyncClient) -> None:
    body = (await web.get(f"{PAGE}/changes")).json()
    assert (body["epoch"], body["version"], body["changes"]) == (await epoch_of(web, PAGE), 0, [])


async def test_changes_since_another_epoch_or_a_version_that_is_not_there_are_404(web: httpx.AsyncClient) -> None:
    epoch = await written(web)
    for since in ("other:1", f"{epoch}:4", f"{epoch}:{2**63}", f"{epoch}:{10**30}", f"x{epoch}:1"):
        answer = await web.get(f"{PAGE}/changes", params={"since": since})
        assert error_of(answer) == (404, "not_found"), since


async def test_changes_since_a_version_that_is_forgotten_are_404_and_all_are_those_that_are_kept(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/plait.db"
    async with serving(store=store) as web:
        epoch = await shortened(web)
    async with serving(store=store) as web:
        for since in (0, 3):
            answer = await web.get(f"{BRIEF}/changes", params={"since": f"{epoch}:{since}"})
            assert error_of(answer) == (404, "not_found")
        later = (await web.get(f"{BRIEF}/changes", params={"since": f"{epoch}:4"})).json()
        assert [each["version"] for each in later["changes"]] == [5, 6]
        assert (await web.get(f"{BRIEF}/changes")).json() == later


@each_case("since", ["", "1", ":1", "epoch", "epoch:", "epoch:-1", "epoch:one", "epoch:1.0", "e:²"])
async def test_changes_since_what_is_no_version_are_422(web: httpx.AsyncClient, since: str) -> None:
    answer = await web.get(f"{PAGE}/changes", params={"since": since})
    assert error_of(answer) == (422, "invalid_arguments")
    assert answer.json()["error"]["path"] == "/since"


async def test_a_version_of_more_digits_than_python_reads_is_422(web: httpx.AsyncClient) -> None:
    since = f"{await epoch_of(web, PAGE)}:{'1' * 5000}"
    assert error_of(await web.get(f"{PAGE}/changes", params={"since": since})) == (422, "invalid_arguments")


async def test_the_log_is_there_after_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/plait.db"
    async with serving(store=store) as web:
        epoch = await written(web)
        before = (await web.get(f"{PAGE}/changes")).json()
    async with serving(store=store) as web:
        assert (await web.get(f"{PAGE}/changes")).json() == before
        assert len(before["changes"]) == 3
        later = (await web.get(f"{PAGE}/changes", params={"since": f"{epoch}:2"})).json()
        assert later["changes"] == before["changes"][2:]
        assert (await web.get(f"{PAGE}?at=1")).json() == {"n": 1}
        await web.put(PAGE, json={"n": 4})
        found = (await web.get(f"{PAGE}/changes", params={"since": f"{epoch}:2"})).json()["changes"]
        assert [each["version"] for each in found] == [3, 4]


async def pages(web: httpx.AsyncClient, since: str | None = None, **params: int) -> AsyncIterator[list[int]]:
    """Read the log of a page as long as there is more; gives the versions in each answer."""
    while True:
        answer = await web.get(f"{PAGE}/changes", params={**params, **({} if since is None else {"since": since})})
        body = answer.json()
        found = [each["version"] for each in body["changes"]]
        assert not found or found[-1] == body["version"]
        yield found
        if not body["more"]:
            return
        since = f"{body['epoch']}:{body['version']}"


async def filled(store: str, values: Iterable[Any]) -> None:
    """Store a page that has had these states."""
    app = Plait(Page, store=store)
    async with app:
        page = app.thread(Page, "one")
        await asyncio.gather(*(page.set_state({"n": value}) for value in values))


@pytest.mark.parametrize("is_woken", [False, True])
async def test_more_changes_than_an_answer_has_are_read_an_answer_after_the_other(
    tmp_path: Path, is_woken: bool
) -> None:
    store = f"sqlite:///{tmp_path}/plait.db"
    await filled(store, range(1, 1201))
    async with serving(store=store) as web:
        epoch = await epoch_of(web, PAGE)
        if not is_woken:
            await web.put(PAGE, json={"n": -1})
        last = 1200 if is_woken else 1201
        limits = ((None, 1000), (10_000, 1000), (300, 300), (1199, 1000))
        for (limit, most), since in product(limits, (None, f"{epoch}:190")):
            params = {} if limit is None else {"limit": limit}
            found = [page async for page in pages(web, since, **params)]
            versions = [version for page in found for version in page]
            # Bounds are kept to roughly: nothing of what is to be kept may be missing.
            assert versions == [*range(versions[0], last + 1)]
            assert versions[0] <= 202 if since is None else versions[0] == 191
            assert [len(page) for page in found[:-1]] == [most] * (len(found) - 1)
            assert 0 < len(found[-1]) <= most


async def test_an_answer_has_no_more_bytes_of_changes_than_it_takes_to_pass_a_bound(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/plait.db"
    await filled(store, ("x" * 400_000 + str(n) for n in range(8)))
    async with serving(store=store) as web:
        assert [page async for page in pages(web)] == [[1, 2, 3], [4, 5, 6], [7, 8]]


async def test_who_reads_what_is_there_is_told_that_there_is_no_more(web: httpx.AsyncClient) -> None:
    epoch = await written(web)
    for since, limit, more in ((0, 2, True), (0, 3, False), (1, 2, False), (2, 1, False), (3, 1, False)):
        answer = await web.get(f"{PAGE}/changes", params={"since": f"{epoch}:{since}", "limit": limit})
        assert answer.json()["more"] is more
        assert answer.json()["version"] == min(since + limit, 3)


@each_case("limit", ["", "0", "-1", "1.0", "many", "1" * 5000])
async def test_what_is_no_number_of_changes_is_422(web: httpx.AsyncClient, limit: str) -> None:
    answer = await web.get(f"{PAGE}/changes", params={"limit": limit})
    assert error_of(answer) == (422, "invalid_arguments")
    assert answer.json()["error"]["path"] == "/limit"


# Who may


@each_case("path", [f"{PAGE}?at=0", f"{PAGE}/changes", f"{PAGE}/changes?since=x:1"])
@each_case("accept", ["application/json", "text/event-stream"])
async def test_the_log_is_for_those_who_may_read(path: str, accept: str) -> None:
    async def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        asked.append((str(thread), action))
        return action != "read"

    asked: list[tuple[str, str]] = []
    async with serving(authorize=authorize) as web:
        assert error_of(await web.get(path, headers={"Accept": accept})) == (403, "forbidden")
        assert asked == [("page/one", "read")]


async def test_who_may_only_read_may_read_the_log() -> None:
    async with serving(authorize=lambda principal, thread, action: action == "read") as web:
        assert (await web.get(f"{PAGE}?at=0")).json() == {"n": 0}
        assert (await web.get(f"{PAGE}/changes")).json()["changes"] == []


async def test_the_log_of_an_unknown_kind_is_404(web: httpx.AsyncClient) -> None:
    for path in ("?at=0", "/changes"):
        assert error_of(await web.get(f"/threads/nothing/one{path}")) == (404, "not_found")


# The client


@pytest.mark.local
async def test_a_server_hands_out_the_javascript_client(web: httpx.AsyncClient) -> None:
    answer = await web.get("/plait/client.js")
    assert answer.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == "text/javascript"
    exported = re.search(r"export\{([^}]*)\}", answer.text)
    assert exported is not None
    assert {"ThreadClient", "PlaitError"} <= {each.split()[-1] for each in exported[1].split(",")}
    assert "plait.v1" in answer.text
    assert error_of(await web.post("/plait/client.js")) == (405, "method_not_allowed")


@pytest.mark.local
@pytest.mark.parametrize("part", ["messages", "files"])
async def test_a_server_hands_out_the_parts_for_messages_and_files_which_share_the_error_of_the_client(
    part: str, web: httpx.AsyncClient
) -> None:
    answer = await web.get(f"/plait/{part}.js")
    assert answer.headers["content-type"].partition(";")[0] == "text/javascript"
    assert re.findall(r'import\{PlaitError as \w+\}from"([^"]*)"', answer.text)[:1] == ["./client.js"]
    assert "extends Error" not in answer.text


@pytest.mark.local
async def test_a_server_hands_out_the_lists_of_threads_which_share_the_error_of_the_client(
    web: httpx.AsyncClient,
) -> None:
    answer = await web.get("/plait/listing.js")
    assert answer.headers["content-type"].partition(";")[0] == "text/javascript"
    assert re.findall(r'import\{PlaitError as \w+\}from"([^"]*)"', answer.text)[:1] == ["./client.js"]
    assert {"listThreads", "watchThreads"} <= set(re.findall(r"\w+ as (\w+)", answer.text))


# Texts


class Note(Thread[dict[str, Any]]):
    """Has a text that is written in."""

    initial_state = {"note": "hello", "n": 0}  # noqa: RUF012
    texts = ("/note",)

    @rpc
    def write(self, text: str, times: int = 1) -> None:
        for _ in range(times):
            self.append("/note", text)

    @rpc
    def all_at_once(self) -> None:
        with self.transaction():
            self.append("/note", "!")
            self.update("/n", 1)
            self.splice("/note", 0, 1, "J")


async def test_the_log_has_splices_or_for_who_asks_the_whole_text() -> None:
    async with running(Plait(Note, store=MemoryStore())) as address, http(address) as web:
        await web.post("/threads/note/one/rpc/write", json={"args": [" you"]})
        await web.post("/threads/note/one/rpc/all_at_once")
        log = (await web.get("/threads/note/one/changes")).json()["changes"]
        assert [each["ops"] for each in log] == [
            [{"op": "splice", "path": "/note", "at": 5, "insert": " you"}],
            [
                {"op": "splice", "path": "/note", "at": 9, "insert": "!"},
                {"op": "add", "path": "/n", "value": 1},
                {"op": "splice", "path": "/note", "at": 0, "remove": 1, "insert": "J"},
            ],
        ]
        plain = (await web.get("/threads/note/one/changes?patch=rfc6902")).json()
        assert [each["ops"] for each in plain["changes"]] == [
            [put("/note", "hello you")],
            [put("/note", "hello you!"), {"op": "add", "path": "/n", "value": 1}, put("/note", "Jello you!")],
        ]
        assert (plain["version"], plain["more"]) == (2, False)
        later = (await web.get(f"/threads/note/one/changes?patch=rfc6902&since={plain['epoch']}:1")).json()
        assert later["changes"] == plain["changes"][1:]
        for query, headers in (("patch=rfc1", {}), ("patch=rfc6902", {"accept": "text/event-stream"})):
            refused = await web.get(f"/threads/note/one/changes?{query}", headers=headers)
            assert (refused.status_code, refused.json()["error"]["path"]) == (422, "/patch")


async def test_an_answer_with_whole_texts_ends_when_it_is_long() -> None:
    async with running(Plait(Note, store=MemoryStore())) as address, http(address) as web:
        await web.post("/threads/note/one/rpc/write", json={"args": ["x" * 100_000]})
        await web.post("/threads/note/one/rpc/write", json={"args": ["y"], "kwargs": {"times": 30}})
        url, found, since, is_more = "/threads/note/one/changes?patch=rfc6902", [], "", True
        while is_more:
            answer = await web.get(f"{url}{since}")
            assert len(answer.content) < 1_300_000
            page = answer.json()
            found += page["changes"]
            since, is_more = f"&since={page['epoch']}:{page['version']}", page["more"]
        assert [each["version"] for each in found] == list(range(1, 32))
        assert found[-1]["ops"] == [put("/note", f"hello{'x' * 100_000}{'y' * 30}")]
