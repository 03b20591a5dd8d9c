"""The metrics of an app, as a scraper reads them."""

import re
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from tests.cases import each_case

from plait import MemoryStore, Plait, Thread, rpc
from plait.instruments.prometheus import METRICS, Metrics
from plait.settings import SettingError
from plait.web.authentication import Authenticate

PATH = "/threads/room/one"


class Room(Thread[Any]):
    initial_state = {"n": 0}  # noqa: RUF012

    @rpc
    def add(self) -> int:
        self.set_state(lambda state: {"n": state["n"] + 1})
        return self.version


async def nobody(request: Request) -> None:
    return None


def make_app(**settings: Any) -> Plait:
    return Plait(Room, **{"store": MemoryStore(), "metrics": True, **settings})


@asynccontextmanager
async def serve(app: Plait) -> AsyncIterator[httpx.AsyncClient]:
    """Run an app; yields a client of it."""
    async with app, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as web:
        yield web


def read(text: str) -> dict[tuple[str, ...], float]:
    """Return the samples of an exposition, by name and the values of their labels as the metric names them."""
    labels = {metric.name.removesuffix("_total"): metric.labels for metric in METRICS}
    found = {}
    for family in text_string_to_metric_families(text):
        names = (*labels.get(family.name, ()), "le")
        for sample in family.samples:
            found[sample.name, *(sample.labels[name] for name in names if name in sample.labels)] = sample.value
    return found


# Counting


async def test_what_happens_is_counted_by_kind() -> None:
    async with serve(make_app()) as web:
        for _ in range(3):
            await web.post(f"{PATH}/rpc/add")
        await web.post(f"{PATH}/rpc/nothing")
        found = read((await web.get("/metrics")).text)
    assert found["plait_requests_total", "room", "POST", "200"] == 3
    assert found["plait_requests_total", "room", "POST", "404"] == 1
    assert found["plait_request_seconds_count", "room", "POST"] == 4
    assert found["plait_turns_total", "room", "rpc add", "ok"] == 3
    assert found["plait_turns_running", "room"] == 0
    assert found["plait_changes_total", "room", "ok"] == 3
    assert found["plait_commit_seconds_count", "room"] == 3
    assert found["plait_change_bytes_sum", "room"] == 3 * len('[{"op":"replace","path":"/n","value":1}]')
    assert found["plait_threads_awake", "room"] == 1
    assert found["process_resident_memory_bytes",] > 1e6


def test_a_histogram_counts_a_value_in_its_bucket_and_all_larger_ones() -> None:
    metrics = Metrics()
    for seconds in (0.0, 0.005, 0.0051, 99.0):
        metrics.woke("room", seconds)
    found = read(metrics.read()[0].decode())
    counts = {labels[-1]: value for labels, value in found.items() if labels[0] == "plait_wake_seconds_bucket"}
    assert [counts[bound] for bound in ("0.0025", "0.005", "0.01", "30.0", "+Inf")] == [1, 2, 3, 3, 4]
    assert found["plait_wake_seconds_sum", "room"] == pytest.approx(99.0101)


def test_all_metrics_are_there_before_anything_has_happened() -> None:
    families = {each.name for each in text_string_to_metric_families(Metrics().read()[0].decode())}
    assert families >= {metric.name.removesuffix("_total") for metric in METRICS}


def test_labels_that_a_peer_chooses_are_few() -> None:
    metrics = Metrics()
    for code in range(3000, 5000):
        metrics.socket_closed("plait.v1", code)
    for method in ("GET", "BREW", "MKCALENDAR"):
        metrics.request_ended(metrics.request_began("room", "one", method, None), 200)
    found = read(metrics.read()[0].decode())
    assert len([labels for labels in found if labels[0] == "plait_sockets_closed_total"]) < 10
    assert found["plait_requests_total", "room", "other", "200"] == 2


async def test_the_names_of_threads_are_no_labels() -> None:
    async with serve(make_app()) as web:
        await web.post("/threads/room/secret/rpc/add")
        await web.get("/threads/hidden/secret")
        text = (await web.get("/metrics")).text
    assert "secret" not in text
    assert "hidden" not in text


# Reading


async def test_a_scraper_may_ask_for_openmetrics() -> None:
    async with serve(make_app()) as web:
        plain = await web.get("/metrics")
        answer = await web.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert {"plait_turns", "plait_sockets"} <= {each.name for each in parse_openmetrics(answer.text)}


async def test_metrics_are_off_unless_they_are_set() -> None:
    async with serve(Plait(Room, store=MemoryStore())) as web:
        assert (await web.get("/metrics")).status_code == 404


async def test_metrics_are_switched_on_by_their_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_METRICS", "1")
    async with serve(Plait(Room, store=MemoryStore())) as web:
        assert (await web.get("/metrics")).status_code == 200


@each_case("authenticate", [None, nobody])
async def test_metrics_are_not_shown_by_the_name_of_another_site(authenticate: Authenticate | None) -> None:
    app = make_app(authenticate=authenticate)
    app.prepare_serving("plait.example")
    async with serve(app) as web:
        assert (await web.get("/metrics", headers={"host": "evil.example"})).status_code == 421
        for name in ("localhost", "plait.example", "10.0.0.1:8000"):
            assert (await web.get("/metrics", headers={"host": name})).status_code == 200


async def test_each_app_has_metrics_of_its_own() -> None:
    async with serve(make_app()) as one, serve(make_app()) as other:
        await one.post(f"{PATH}/rpc/add")
        assert ("plait_threads_awake", "room") in read((await one.get("/metrics")).text)
        assert ("plait_threads_awake", "room") not in read((await other.get("/metrics")).text)


async def test_metrics_may_be_read_with_those_of_another_registry() -> None:
    registry = CollectorRegistry()
    async with serve(make_app(metrics=False, instruments=Metrics(registry))) as web:
        await web.post(f"{PATH}/rpc/add")
        assert (await web.get("/metrics")).status_code == 404
    assert read(generate_latest(registry).decode())["plait_sleeps_total", "room"] == 1


def test_another_os_thread_may_read_while_the_loop_counts() -> None:
    registry = CollectorRegistry()
    metrics, count, reads, is_done = Metrics(registry), 40_000, list[dict[tuple[str, ...], float]](), threading.Event()

    def scrape() -> None:
        while not is_done.is_set():
            reads.append(read(generate_latest(registry).decode()))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    with ThreadPoolExecutor(1) as executor:
        try:
            scraping = executor.submit(scrape)
            for index in range(count):
                turn = metrics.turn_began("room", "one", f"rpc {index // 1000}", 0.001, None)
                metrics.turn_ended(turn, 0.001, "ok" if index % 7 else "error")
                message = metrics.message_began("room", "one", "call", None)
                metrics.message_ended(message, "ok" if index % 7 else "error")
                metrics.change_committed(metrics.change_made("room", "one", 100, None), 0.001, 1)
        finally:
            is_done.set()
            sys.setswitchinterval(interval)
        scraping.result()
    reads.append(read(generate_latest(registry).decode()))
    for before, after in pairwise(reads):
        assert [labels for labels in before if "running" not in labels[0] and after[labels] < before[labels]] == []
    assert min(each.get(("plait_turns_running", "room"), 0) for each in reads) >= 0
    last = reads[-1]
    assert last["plait_turns_running", "room"] == 0
    assert last["plait_turn_wait_seconds_bucket", "room", "0.001"] == count
    assert sum(value for labels, value in last.items() if labels[0] == "plait_turns_total") == count
    assert last["plait_messages_total", "room", "call", "ok"] == count - len(range(0, count, 7))
    assert last["plait_messages_total", "room", "call", "error"] == len(range(0, count, 7))
    assert last["plait_message_seconds_count", "room", "call"] == count
    assert last["plait_changes_total", "room", "ok"] == last["plait_commit_writes_bucket", "1.0"] == count


@each_case("version", ["abc", "2.x", "9.9.9"])
async def test_a_scraper_may_ask_for_a_version_that_there_is_not(version: str) -> None:
    async with serve(make_app()) as web:
        answer = await web.get("/metrics", headers={"accept": f"application/openmetrics-text; version={version}"})
    assert answer.status_code == 200
    assert "plait_turns" in answer.text


@pytest.mark.parametrize("is_set", [False, True])
def test_without_the_extra_an_app_says_what_to_install(is_set: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    kind, name = ValueError, "metrics"
    if is_set:
        monkeypatch.setenv("PLAIT_METRICS", "1")
        kind, name = SettingError, "PLAIT_METRICS"
    with pytest.raises(kind, match=re.escape(f"{name}: needs prometheus-client: pip install 'plait[metrics]'")):
        make_app(metrics=not is_set)
