"""The spans of what happens in threads, in the exporter of OpenTelemetry's SDK."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, get_current_span, use_span
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from tests.server.fakes import TroubledStore

from plait import MemoryStore, Plait, Reject, Source, StoreError, Thread, rpc
from plait.instruments.otel import OpenTelemetry

PATH = "/threads/room/one"
TRACE_ID, PARENT_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
TRACEPARENT = f"00-{TRACE_ID:032x}-{PARENT_ID:016x}-01"


class Traced:
    """Spans as they are exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.instruments = OpenTelemetry(self.provider)

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer("the author's")

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended."""
        return list(self._exporter.get_finished_spans())

    def find(self, name: str) -> ReadableSpan:
        """Return the only span of a name."""
        found = [span for span in self.spans if span.name == name]
        assert len(found) == 1, (name, [span.name for span in self.spans])
        return found[0]

    def path(self, span: ReadableSpan) -> list[str]:
        """Return the names from a span up to its root, or the id of a parent that is not known."""
        names = [span.name]
        while span.parent is not None:
            parent = [each for each in self.spans if id_of(each) == span.parent.span_id]
            if not parent:
                return [*names, f"{span.parent.span_id:x}"]
            span = parent[0]
            names.append(span.name)
        return names


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


@pytest.fixture
def traced() -> Iterator[Traced]:
    traced = Traced()
    yield traced
    traced.provider.shutdown()


class Room(Thread[Any]):
    initial_state = {"n": 0}  # noqa: RUF012
    # Set by tests.
    tracer: Any = None
    leaks = False

    def validate_state_change(self, next_state: Any, source: Source) -> None:
        if next_state["n"] < 0:
            raise Reject("negative")

    def on_request(self, request: Request) -> Response:
        return PlainTextResponse("hello")

    @rpc
    def set(self, n: int) -> None:
        self.set_state({"n": n})

    @rpc
    def set_twice(self, n: int) -> None:
        self.set(n)
        self.set(n + 1)

    @rpc
    async def set_both(self, n: int) -> None:
        with self.tracer.start_as_current_span("own"):
            await asyncio.sleep(0)
            await self.thread(Room, "other").call(Room.set, n)
            self.set_state({"n": n})

    @rpc
    async def leak(self) -> None:
        otel_context.attach(otel_context.set_value("leaked", True))
        use_span(self.tracer.start_span("left open")).__enter__()

    @rpc
    def current(self) -> list[Any]:
        return [get_current_span().get_span_context().span_id, otel_context.get_value("leaked")]

    @rpc
    def fail(self) -> None:
        raise ZeroDivisionError


def make_app(traced: Traced, **settings: Any) -> Plait:
    Room.tracer = traced.tracer
    return Plait(Room, **{"store": MemoryStore(), "instruments": traced.instruments, **settings})


def browse(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


async def test_a_request_goes_on_with_the_trace_of_its_header(traced: Traced) -> None:
    async with make_app(traced) as app, browse(app) as web:
        await web.post(f"{PATH}/rpc/set", json={"args": [1]}, headers={"traceparent": TRACEPARENT})
    sent = traced.find("send")
    assert traced.path(sent) == ["send", "change room", "rpc set room", "POST room", f"{PARENT_ID:x}"]
    assert {span.context.trace_id for span in traced.spans if span.context and span.name != "on_start room"} == {
        TRACE_ID
    }
    request = traced.find("POST room")
    assert request.kind is SpanKind.SERVER
    assert dict(request.attributes or {}) == {
        "plait.kind": "room",
        "plait.thread": "one",
        "http.request.method": "POST",
        "http.response.status_code": 200,
    }
    change = dict(traced.find("change room").attributes or {})
    assert change == {"plait.kind": "room", "plait.thread": "one", "plait.bytes": 40, "plait.batch": 1} | {
        "plait.outcome": "ok"
    }


@pytest.mark.parametrize("header", [None, "nonsense", "00-0-0-00"])
async def test_a_request_without_a_valid_header_begins_a_trace(traced: Traced, header: str | None) -> None:
    async with make_app(traced) as app, browse(app) as web:
        await web.get(PATH, headers={} if header is None else {"traceparent": header})
    assert traced.find("GET room").parent is None


async def test_a_method_that_a_client_makes_up_is_not_told(traced: Traced) -> None:
    async with make_app(traced) as app, browse(app) as web:
        await web.request("BREW", PATH)
    span = traced.find("HTTP room")
    assert (span.attributes or {})["http.request.method"] == "_OTHER"


async def test_a_request_in_an_app_that_is_traced_is_a_child_of_its_span(traced: Traced) -> None:
    async with make_app(traced) as app:

        async def outer(*asgi: Any) -> None:
            with traced.tracer.start_as_current_span("outer"):
                await app(*asgi)

        async with browse(outer) as web:
            await web.get(PATH, headers={"traceparent": TRACEPARENT})
    assert traced.path(traced.find("GET room")) == ["GET room", "outer"]


async def test_an_authors_span_in_a_turn_is_a_child_of_the_turn_and_other_threads_go_on(traced: Traced) -> None:
    async with make_app(traced) as app:
        await app.thread(Room, "one").call(Room.set_both, 1)
    assert traced.path(traced.find("own")) == ["own", "rpc set_both room"]
    assert traced.path(traced.find("rpc set room")) == ["rpc set room", "rpc set_both room"]
    assert len({span.context.trace_id for span in traced.spans if span.context and span.name.startswith("rpc")}) == 1


async def test_what_an_app_calls_in_a_span_of_its_own_is_a_child_of_it(traced: Traced) -> None:
    async with make_app(traced) as app:
        with traced.tracer.start_as_current_span("outer"):
            await app.thread(Room, "one").call(Room.set, 1)
            await app.thread(Room, "one").set_state({"n": 3})
            await app.destroy(Room, "one")
    assert traced.path(traced.find("rpc set room")) == ["rpc set room", "outer"]
    assert traced.path(traced.find("destroy room")) == ["destroy room", "outer"]
    changes = [traced.path(span) for span in traced.spans if span.name == "change room"]
    assert changes[-1] == ["change room", "outer"]


async def test_a_turn_that_uses_a_thread_of_another_app_goes_on_there(traced: Traced) -> None:
    class Caller(Thread[Any]):
        async def on_request(self, request: Request) -> Response:
            await other.thread(Room, "other").call(Room.set, 1)
            return PlainTextResponse("hello")

    app = Plait(Caller, store=MemoryStore(), instruments=traced.instruments)
    async with make_app(traced) as other, app, browse(app) as web:
        await web.get("/threads/caller/one/own")
    assert traced.path(traced.find("rpc set room")) == ["rpc set room", "on_request caller", "GET caller"]


async def test_what_a_turn_leaves_current_is_not_seen_by_the_next(traced: Traced) -> None:
    async with make_app(traced) as app:
        room = app.thread(Room, "one")
        turns = [room.call(Room.current), room.call(Room.leak), room.call(Room.current), room.call(Room.current)]
        first, _, *others = await asyncio.gather(*turns)
    ids = [id_of(span) for span in traced.spans if span.name == "rpc current room"]
    assert [first, *others] == [[id, None] for id in ids]


async def test_many_turns_in_one_task_are_no_children_of_each_other(traced: Traced) -> None:
    async with make_app(traced) as app:
        room = app.thread(Room, "one")
        await asyncio.gather(*(room.call(Room.set, n) for n in range(100)))
    turns = [span for span in traced.spans if span.name == "rpc set room"]
    assert len(turns) == 100
    assert [span for span in turns if span.parent is not None] == []


async def test_what_goes_wrong_is_an_error_of_its_span(traced: Traced) -> None:
    async with make_app(traced) as app, browse(app) as web:
        assert (await web.post(f"{PATH}/rpc/fail")).status_code == 500
        assert (await web.post(f"{PATH}/rpc/set", json={"args": [-1]})).status_code == 409
    failed, refused = traced.find("rpc fail room"), traced.find("rpc set room")
    assert [span.status.status_code for span in (failed, refused)] == [StatusCode.ERROR] * 2
    assert [(span.attributes or {})["plait.outcome"] for span in (failed, refused)] == ["error", "rejected"]
    requests = [span for span in traced.spans if span.name == "POST room"]
    assert [span.status.status_code for span in requests] == [StatusCode.ERROR, StatusCode.UNSET]


async def test_a_change_says_how_many_writes_its_transaction_had(traced: Traced) -> None:
    async with make_app(traced) as app:
        await app.thread(Room, "one").call(Room.set_twice, 1)
    changes = [span for span in traced.spans if span.name == "change room"]
    assert [(span.attributes or {})["plait.batch"] for span in changes] == [2, 2]


async def test_a_change_that_could_not_be_stored_is_an_error(traced: Traced) -> None:
    store = TroubledStore()
    async with make_app(traced, store=store) as app:
        room = app.thread(Room, "one")
        await room.call(Room.set, 1)
        store.fail_next()
        with pytest.raises(StoreError):
            await room.call(Room.set, 2)
    failed = [span for span in traced.spans if span.name == "change room"][1]
    assert failed.status.description == "store_error"


async def test_the_global_provider_is_used_unless_one_is_given() -> None:
    async with Plait(Room, store=MemoryStore(), instruments=OpenTelemetry()) as app:
        await app.thread(Room, "one").call(Room.set, 1)  # Without an SDK, spans cost little and go nowhere.


async def test_metrics_and_traces_work_together(traced: Traced) -> None:
    async with make_app(traced, metrics=True) as app, browse(app) as web:
        await web.post(f"{PATH}/rpc/set", json={"args": [1]})
        assert 'plait_changes_total{kind="room",outcome="ok"} 1.0' in (await web.get("/metrics")).text
    assert traced.path(traced.find("send"))[-1] == "POST room"


def test_a_span_is_what_opentelemetry_means_by_it(traced: Traced) -> None:
    trace = traced.instruments.turn_began("room", "one", "rpc set", 0.5, None)
    assert isinstance(trace.span, Span)
    assert get_current_span() is trace.span
    traced.instruments.turn_ended(trace, 1.0, "ok")
    assert get_current_span() is not trace.span
