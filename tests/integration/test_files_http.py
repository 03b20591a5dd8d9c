"""Files over HTTP: uploads, downloads of parts, conditions, limits, rights, and nothing that runs as a page."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.cases import each_case
from tests.integration.socket_client import http
from tests.running import running
from tests.server.parts.files_lab import until

from plait import Files, Limits, Messages, Plait, Principal, Thread, ThreadKey
from plait.store.thread_rows import RecordRange
from plait_client import Refused, connect

pytestmark = pytest.mark.relayed

SIZE = 600_000
DATA = os.urandom(1000) * (SIZE // 1000)


class Room(Thread[Any]):
    files = Files()

    async def on_request(self, request: Any) -> Any:
        raise LookupError


class Plain(Thread[Any]):
    """Has no files."""

    initial_state = 0


class Talk(Thread[Any]):
    """Has messages to which files belong."""

    files = Files()
    messages = Messages(live=True)


class Closed(Thread[Any]):
    """Its connections are readonly."""

    files = Files()

    def should_be_readonly(self, connection: Any, request: Any) -> bool:
        return True


def make_app(**options: Any) -> Plait:
    return Plait(Room, Plain, Talk, Closed, store="memory://", **options)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with running(make_app()) as address, http(address) as client:
        yield client


async def slowly(data: bytes, gate: asyncio.Event) -> AsyncIterator[bytes]:
    yield data
    await gate.wait()


URL = "/threads/room/one/files"


async def test_a_file_is_put_read_and_removed(client: httpx.AsyncClient) -> None:
    answer = await client.put(f"{URL}/docs/a%20b.bin", content=DATA, headers={"content-type": "image/x-own"})
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert {key: made[key] for key in ("path", "name", "size", "mime", "is_directory", "metadata", "width")} == {
        "path": "docs/a b.bin",
        "name": "a b.bin",
        "size": SIZE,
        "mime": "image/x-own",
        "is_directory": False,
        "metadata": {},
        "width": None,
    }
    assert answer.headers["etag"] == f'"{made["etag"]}"'
    for url in (f"{URL}/docs/a%20b.bin", "/agents/room/one/files//docs//a%20b.bin/", f"{URL}/docs%2Fa%20b.bin"):
        answer = await client.get(url)
        assert (answer.status_code, answer.content) == (200, DATA)
    assert answer.headers["content-type"] == "image/x-own"
    assert answer.headers["content-length"] == str(SIZE)
    head = await client.head(f"{URL}/docs/a%20b.bin")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(SIZE))
    again = await client.put(f"{URL}/docs/a%20b.bin", content=b"")
    assert (again.status_code, again.json()["size"]) == (200, 0)
    assert again.headers["etag"] != head.headers["etag"]
    assert (await client.get(f"{URL}/docs/a%20b.bin")).content == b""
    assert (await client.delete(f"{URL}/docs/a%20b.bin")).status_code == 204
    for method in ("GET", "HEAD", "DELETE"):
        assert (await client.request(method, f"{URL}/docs/a%20b.bin")).status_code == 404


async def test_a_download_never_runs_as_a_page(client: httpx.AsyncClient) -> None:
    await client.put(f"{URL}/evil.html", content=b"<script>1</script>", headers={"content-type": "text/html"})
    headers = (await client.get(f"{URL}/evil.html")).headers
    assert headers["content-disposition"].startswith("attachment")
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]
    await client.put(f"{URL}/a%22%3B%20b%C3%BC.txt", content=b"")
    found = (await client.get(f"{URL}/a%22%3B%20b%C3%BC.txt")).headers["content-disposition"]
    assert found == "attachment; filename*=UTF-8''a%22%3B%20b%C3%BC.txt"


@each_case(
    ("mime", "served"),
    [
        ("image/png", "image/png"),
        ("image/svg+xml", "image/svg+xml"),
        ("Video/MP4", "Video/MP4"),
        ("audio/webm;codecs=vp8,opus", "audio/webm"),
        ("font/woff2", "font/woff2"),
        ("application/pdf", "application/pdf"),
        ("text/plain", "text/plain"),
        ("text/plain; charset=iso-8859-1", "text/plain; charset=iso-8859-1"),
        ("text/plain; charset=x, text/javascript", "text/plain"),
        ("image/png, text/javascript", "application/octet-stream"),
        ("text/javascript", "application/octet-stream"),
        ("application/ecmascript", "application/octet-stream"),
        ("text/css", "application/octet-stream"),
        ("text/html", "application/octet-stream"),
        ("application/wasm", "application/octet-stream"),
        ("own", "application/octet-stream"),
    ],
)
async def test_only_types_that_run_nothing_are_served(mime: str, served: str, client: httpx.AsyncClient) -> None:
    made = await client.put(f"{URL}/a", content=b"a", headers={"content-type": mime})
    assert made.json()["mime"] == mime
    for answer in (await client.get(f"{URL}/a"), await client.head(f"{URL}/a")):
        assert answer.headers.get_list("content-type") == [served]


@each_case(
    ("header", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=262140-262150", 262140, 262151),
        ("bytes=599990-", 599990, SIZE),
        ("bytes=-10", 599990, SIZE),
        ("bytes=-9999999", 0, SIZE),
        ("bytes=5-9999999", 5, SIZE),
    ],
)
async def test_one_range_is_sent(header: str, start: int, end: int, client: httpx.AsyncClient) -> None:
    await client.put(f"{URL}/a.bin", content=DATA)
    answer = await client.get(f"{URL}/a.bin", headers={"range": header})
    assert (answer.status_code, answer.content) == (206, DATA[start:end])
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{SIZE}"
    assert answer.headers["accept-ranges"] == "bytes"


@each_case("header", ["bytes=0-1,5-6", "bytes=a-b", "bytes=-", "lines=1-2", "bytes=9-3", "bytes=" + "9" * 99])
async def test_other_ranges_are_ignored(header: str, client: httpx.AsyncClient) -> None:
    await client.put(f"{URL}/a.bin", content=DATA)
    answer = await client.get(f"{URL}/a.bin", headers={"range": header})
    assert (answer.status_code, answer.content) == (200, DATA)


@pytest.mark.parametrize("header", ["bytes=0-1", "bytes=600000-"])
async def test_a_head_has_no_range(header: str, client: httpx.AsyncClient) -> None:
    await client.put(f"{URL}/a.bin", content=DATA)
    answer = await client.head(f"{URL}/a.bin", headers={"range": header})
    assert (answer.status_code, answer.headers["content-length"]) == (200, str(SIZE))
    assert "content-range" not in answer.headers


@each_case("header", ["bytes=600000-", "bytes=600000-700000", "bytes=-0"])
async def test_a_range_without_bytes_is_416(header: str, client: httpx.AsyncClient) -> None:
    await client.put(f"{URL}/a.bin", content=DATA)
    answer = await client.get(f"{URL}/a.bin", headers={"range": header})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{SIZE}")


async def test_conditions(client: httpx.AsyncClient) -> None:
    url = f"{URL}/a.bin"
    first = (await client.put(url, content=DATA, headers={"if-none-match": "*"})).headers["etag"]
    assert (await client.put(url, content=b"2", headers={"if-none-match": "*"})).status_code == 412
    assert (await client.put(url, content=b"2", headers={"if-match": '"other"'})).status_code == 412
    assert (await client.put(f"{URL}/none", content=b"2", headers={"if-match": "*"})).status_code == 412
    assert (await client.get(url, headers={"if-none-match": f'"x", W/{first}'})).status_code == 304
    assert (await client.get(url, headers={"if-match": '"other"'})).status_code == 412
    assert (await client.get(url, headers={"range": "bytes=0-1", "if-range": first})).status_code == 206
    assert (await client.get(url, headers={"range": "bytes=0-1", "if-range": '"other"'})).status_code == 200
    answer = await client.put(url, content=b"2", headers={"if-match": first})
    assert answer.status_code == 200
    assert (await client.delete(url, headers={"if-match": first})).status_code == 412
    assert (await client.delete(url, headers={"if-match": answer.headers["etag"]})).status_code == 204


async def test_what_is_no_file_is_refused(client: httpx.AsyncClient) -> None:
    await client.put(f"{URL}/d/a", content=b"1")
    for url, code in (
        (f"{URL}/d", "is a directory"),
        (f"{URL}/d/a/b", "d/a is a file"),
        (f"{URL}/..%2Fx", "'..'"),
        (f"{URL}/a%00b", "control character"),
        (f"{URL}/a%5Cb", "backslash"),
        (f"{URL}/a%ff", "UTF-8"),
    ):
        answer = await client.put(url, content=b"")
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_arguments"), url
        assert code in answer.json()["error"]["message"]
    assert (await client.delete(f"{URL}/d")).status_code == 422
    assert (await client.get(f"{URL}/d")).status_code == 404


async def test_a_part_of_a_file_cannot_be_put(client: httpx.AsyncClient) -> None:
    await client.put(f"{URL}/a", content=b"whole")
    answer = await client.put(f"{URL}/a", content=b"w", headers={"content-range": "bytes 0-0/5"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")
    assert (await client.get(f"{URL}/a")).content == b"whole"


async def test_requests_of_kinds_without_files_and_other_methods_are_the_authors(client: httpx.AsyncClient) -> None:
    assert (await client.get("/threads/plain/one/files/a")).status_code == 404
    assert (await client.post(f"{URL}/a", content=b"")).status_code == 500
    assert (await client.get(URL)).status_code == 500, "without a path"


async def test_reading_creates_no_thread_and_removing_neither(client: httpx.AsyncClient) -> None:
    for method in ("GET", "HEAD", "DELETE"):
        assert (await client.request(method, "/threads/room/none/files/a")).status_code == 404
    assert (await client.get("/threads/room/none/changes")).status_code == 404


async def test_an_upload_that_breaks_off_leaves_no_file() -> None:
    app = make_app()
    async with running(app) as address, http(address) as client:

        async def broken() -> AsyncIterator[bytes]:
            yield DATA
            raise LookupError

        with pytest.raises(LookupError):
            await client.put(f"{URL}/a.bin", content=broken())
        actor = await app._node.actor(ThreadKey("room", "one"))

        async def is_empty() -> bool:
            return not await actor.records.list(RecordRange("files"))

        await until(is_empty)
        assert (await client.get(f"{URL}/a.bin")).status_code == 404


@each_case("body", [b"a", DATA, None])
async def test_an_upload_that_breaks_off_or_is_refused_leaves_no_thread(body: bytes | None) -> None:
    app, cut = make_app(limits=Limits(file=SIZE)), asyncio.Event()
    async with running(app) as address, http(address) as client:

        async def broken() -> AsyncIterator[bytes]:
            yield DATA + b"1" if body is None else body
            await cut.wait()
            raise LookupError

        async def has_begun() -> bool:
            return bool(app._context.requests.uploads)

        async def has_ended() -> bool:
            return not app._context.requests.uploads

        upload = asyncio.create_task(client.put(f"{URL}/a.bin", content=broken()))
        if body is not None:
            await until(has_begun)
        cut.set()
        with pytest.raises((LookupError, httpx.HTTPError)):
            await upload
        await until(has_ended)
        assert await app.thread(Room, "one").created_at() is None
        assert (await client.put(f"{URL}/a.bin", content=DATA)).status_code == 201
        assert (await client.get(f"{URL}/a.bin")).content == DATA


@each_case(
    ("headers", "status"),
    [
        ({"content-encoding": "gzip"}, 415),
        ({"content-encoding": "br, gzip"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"content-type": "Application/X-WWW-Form-URLencoded"}, 415),
        ({"content-type": "x" * 300}, 422),
        ({"content-encoding": "identity", "content-type": "text/plain"}, 201),
    ],
)
async def test_what_is_not_the_file_itself_is_refused_and_leaves_no_thread(
    client: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    answer = await client.put(f"{URL}/a", content=b"1", headers=headers)
    assert answer.status_code == status, answer.text
    if status == 415:
        assert answer.json()["error"]["code"] == "unsupported_media_type"
    assert (await client.get("/threads/room/one/changes")).status_code == (200 if status == 201 else 404)


# Slow clients


async def test_a_slow_reader_holds_no_more_than_it_reads_and_keeps_its_content_until_it_leaves() -> None:
    app, size = make_app(), 160 * 256 * 1024
    async with running(app) as address, http(address) as client:
        await client.put(f"{URL}/a.bin", content=bytes(size))
        actor = await app._node.actor(ThreadKey("room", "one"))
        reads, record = list[str](), actor.host.store.record

        async def count(key: ThreadKey, part: str, name: str) -> bytes | None:
            reads.append(name)
            return await record(key, part, name)

        actor.host.store.record = count  # type: ignore[method-assign]
        async with client.stream("GET", f"{URL}/a.bin") as answer:
            pieces = answer.aiter_raw(65536)
            await anext(pieces)
            await client.put(f"{URL}/a.bin", content=b"new")
            before = -1
            while len(reads) > before:  # Until the buffers between are full.
                before = len(reads)
                await asyncio.sleep(0.2)
            assert 0 < len(reads) < 100
            assert (await client.get(f"{URL}/a.bin")).content == b"new"
            assert await actor.records.list(RecordRange("files", "c/", limit=200))
            assert await anext(pieces) == bytes(65536)

        async def is_swept() -> bool:
            return len(await actor.records.list(RecordRange("files", "c/", limit=200))) == 1

        await until(is_swept)
        assert len(reads) < 101


async def test_a_slow_writer_delays_nobody_else() -> None:
    app, gate = make_app(), asyncio.Event()
    async with running(app) as address, http(address) as client:
        slow = [asyncio.create_task(client.put(f"{URL}/slow{n}", content=slowly(DATA, gate))) for n in range(3)]

        async def have_all_begun() -> bool:
            return sum(app._context.requests.uploads.values()) == 3

        await until(have_all_begun)
        assert (await client.put(f"{URL}/fast", content=b"1")).status_code == 201
        assert (await client.get(f"{URL}/fast")).content == b"1"
        assert (await client.get(f"{URL}/slow0")).status_code == 404
        gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*slow)} == {201}
        assert (await client.get(f"{URL}/slow2")).content == DATA


# Limits and rights


async def test_a_file_above_the_limit_is_413_at_once_or_when_it_comes() -> None:
    async with running(make_app(limits=Limits(file=100_000, frame=1000))) as address, http(address) as client:
        assert (await client.put(f"{URL}/a.bin", content=DATA[:100_000])).status_code == 201

        async def unknown() -> AsyncIterator[bytes]:
            for at in range(0, SIZE, 1000):
                yield DATA[at : at + 1000]

        for content in (DATA, unknown()):
            answer = await client.put(f"{URL}/b.bin", content=content)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        assert (await client.get(f"{URL}/b.bin")).status_code == 404
        answer = await client.put("/threads/plain/one", content=b"[" + b"1," * 1000 + b"1]")
        assert answer.status_code == 413, "other bodies have their own limit"


async def test_four_uploads_of_a_principal_run_at_once() -> None:
    def authenticate(request: Any) -> Principal:
        return Principal(request.headers.get("x-user", "ada"))

    gate, limits = asyncio.Event(), Limits()
    app = make_app(authenticate=authenticate, limits=limits)
    async with running(app) as address, http(address) as client:
        tasks = [asyncio.create_task(client.put(f"{URL}/{n}", content=slowly(b"1", gate))) for n in range(4)]

        async def have_all_begun() -> bool:
            return sum(app._context.requests.uploads.values()) == 4

        await until(have_all_begun)
        answer = await client.put(f"{URL}/x", content=b"1")
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        assert (await client.put(f"{URL}/x", content=b"1", headers={"x-user": "bob"})).status_code in (200, 201)
        gate.set()
        assert [each.status_code for each in await asyncio.gather(*tasks)] == [201] * 4
        assert (await client.put(f"{URL}/x", content=b"1")).status_code in (200, 201)


async def test_readonly_connections_do_not_upload(client: httpx.AsyncClient) -> None:
    answer = await client.put("/threads/closed/one/files/a", content=b"1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "readonly")


@each_case(
    ("denied", "refused"),
    [("files", {"GET", "HEAD"}), ("upload", {"PUT", "DELETE"}), ("write", {"PUT", "DELETE"}), ("create", set())],
)
async def test_authorize_decides_who_reads_and_who_uploads(denied: str, refused: set[str]) -> None:
    def authorize(principal: Any, thread: ThreadKey, action: str) -> bool:
        return action != denied or thread.name == "free"

    app = make_app(authorize=authorize)
    async with running(app) as address, http(address) as client:
        await app.thread(Room, "one").part(Room.files).write("a", "1")
        for method in ("GET", "HEAD", "PUT", "DELETE"):
            answer = await client.request(method, f"{URL}/a", content=b"2" if method == "PUT" else None)
            assert (answer.status_code == 403) == (method in refused), method
        if denied == "create":
            assert (await client.put("/threads/room/new/files/a", content=b"1")).status_code == 403


# Events


async def test_sending_a_message_gives_no_right_over_files() -> None:
    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        return action != "upload"

    app = make_app(authorize=authorize)
    async with running(app) as address, connect(f"ws://{address}/threads/talk/one") as room:
        talk = app.thread(Talk, "one")
        files, messages = talk.part(Talk.files), talk.part(Talk.messages)
        await files.write("attachments/a.png", b"a")
        with pytest.raises(Refused, match="forbidden"):
            await room.messages.send("mine", attachments=[{"path": "attachments/a.png"}])
        assert await messages.delete(await room.messages.send("mine", attachments=[{"url": "/a.png"}]))
        assert await files.read("attachments/a.png") == b"a"


async def test_clients_get_events_of_changed_files_in_order_when_they_are_durable() -> None:
    app = make_app()
    async with running(app) as address, connect(f"ws://{address}/threads/room/one") as room:
        events = list[Any]()
        for name in ("file_created", "file_updated", "file_deleted", "end"):
            room.on_event(name, lambda data, name=name: events.append((name, data)))
        thread: Any = (await app._node.actor(ThreadKey("room", "one"))).thread
        await thread.files.write("a.txt", "1")
        await thread.files.mkdir("d")
        with pytest.raises(ZeroDivisionError), thread.transaction():  # noqa: PT012
            thread.files.unlink("a.txt")
            raise ZeroDivisionError
        with thread.transaction():
            thread.files.move("a.txt", "b.txt")
            thread.set_state(1)
        await thread.files.write("b.txt", "2", mime="text/x-own")
        await thread.files.unlink("b.txt")
        thread.emit("end")

        async def has_ended() -> bool:
            return bool(events) and events[-1][0] == "end"

        await until(has_ended)
        told = [(name, data and data["path"], data and data.get("mime")) for name, data in events]
        assert told == [
            ("file_created", "a.txt", "text/plain"),
            ("file_deleted", "a.txt", None),
            ("file_created", "b.txt", "text/plain"),
            ("file_updated", "b.txt", "text/x-own"),
            ("file_deleted", "b.txt", None),
            ("end", None, None),
        ]
        assert events[0][1]["is_directory"] is False
