"""Metrics for Prometheus, with the extra `plait[metrics]`.

prometheus-client's own counters lock and look up their labels each time, which would cost as much as a small rpc. These
are plain numbers, as only the event loop changes them, and become prometheus-client's metrics when they are read.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector

from plait.instruments import NoInstruments
from plait_schemas import codes

__all__ = ["METRICS", "Metric", "Metrics"]

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Metric(NamedTuple):
    """One metric: its name, type and labels, and what it measures."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    # The upper bounds of a histogram's buckets.
    bounds: tuple[float, ...] = ()


_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BYTES: Final = (64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0)
_WRITES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)

METRICS: Final = (
    Metric("plait_requests_total", "counter", ("kind", "method", "status"), "HTTP requests for threads"),
    Metric("plait_request_seconds", "histogram", ("kind", "method"), "Time until the answer was sent", _SECONDS),
    Metric("plait_sockets", "gauge", ("protocol",), "Open sockets"),
    Metric("plait_sockets_opened_total", "counter", ("protocol",), "Sockets that were opened"),
    Metric("plait_sockets_closed_total", "counter", ("protocol", "code"), "Sockets that were closed"),
    Metric("plait_joins_total", "counter", ("kind", "protocol", "sent"), "Joins, by what was sent"),
    Metric("plait_messages_total", "counter", ("kind", "type", "outcome"), "Messages on sockets"),
    Metric("plait_message_seconds", "histogram", ("kind", "type"), "Time until a message was answered", _SECONDS),
    Metric("plait_pushes_total", "counter", ("kind", "outcome"), "Pushes, by their answers"),
    Metric("plait_turns_total", "counter", ("kind", "turn", "outcome"), "Turns: hooks, rpcs and requests"),
    Metric("plait_turn_seconds", "histogram", ("kind", "turn"), "Time that turns ran", _SECONDS),
    Metric("plait_turn_wait_seconds", "histogram", ("kind",), "Time that turns waited for others", _SECONDS),
    Metric("plait_turns_running", "gauge", ("kind",), "Turns that run"),
    Metric("plait_changes_total", "counter", ("kind", "outcome"), "Changes that were stored, or failed"),
    Metric("plait_change_bytes", "histogram", ("kind",), "Bytes of the operations of a change", _BYTES),
    Metric("plait_changes_sent_total", "counter", ("kind",), "Changes sent, counted for each connection"),
    Metric("plait_commit_seconds", "histogram", ("kind",), "Time until a change was durable", _SECONDS),
    Metric("plait_commit_writes", "histogram", (), "Writes in the transaction of a change", _WRITES),
    Metric("plait_store_errors_total", "counter", ("code",), "Reads and writes of the store that failed"),
    Metric("plait_threads_awake", "gauge", ("kind",), "Threads that are awake"),
    Metric("plait_wake_seconds", "histogram", ("kind",), "Time that threads took to wake", _SECONDS),
    Metric("plait_sleeps_total", "counter", ("kind",), "Threads that went to sleep"),
    Metric("plait_slow_readers_total", "counter", ("kind",), "Times that a client read too slowly"),
    Metric("plait_limits_hit_total", "counter", ("limit",), "Times that a client exceeded a limit"),
)

# Labels that a peer chooses: others are counted together.
_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "POST", "PATCH", "DELETE"})
_CODES: Final = frozenset({*range(1000, 1016), *(value for value in vars(codes).values() if isinstance(value, int))})


class _Histogram:
    """Counts values by bucket."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        buckets, total = [], 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        family.add_metric(labels, buckets, self._sum)


class _Histograms(dict[tuple[str, ...], _Histogram]):
    """The histograms of one metric, by their labels."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds

    def __missing__(self, labels: tuple[str, ...]) -> _Histogram:
        histogram = self[labels] = _Histogram(self._bounds)
        return histogram


class Metrics(NoInstruments):
    """Counts what happens in one app; `Plait(metrics=True)` makes one and serves it at `/metrics`.

    With `Plait(instruments=Metrics(registry))`, the metrics are read with the others of that registry instead.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        counts: dict[str, defaultdict[tuple[str, ...], int]] = {}
        times: dict[str, _Histograms] = {}
        for each in METRICS:
            if each.type == "histogram":
                times[each.name] = _Histograms(each.bounds)
            else:
                counts[each.name] = defaultdict(int)
        self._counts = counts
        self._times = times
        # Attributes, as these are used for each message, turn and change.
        self._messages, self._message_seconds = counts["plait_messages_total"], times["plait_message_seconds"]
        self._pushes, self._running = counts["plait_pushes_total"], counts["plait_turns_running"]
        self._turns, self._turn_seconds = counts["plait_turns_total"], times["plait_turn_seconds"]
        self._waits, self._changes = times["plait_turn_wait_seconds"], counts["plait_changes_total"]
        self._bytes, self._sent = times["plait_change_bytes"], counts["plait_changes_sent_total"]
        self._commit_seconds, self._writes = times["plait_commit_seconds"], times["plait_commit_writes"][()]
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
        self.registry = registry
        registry.register(self)

    def read(self, accept: str = "") -> tuple[bytes, str]:
        """Return the metrics as text, in the format that a scraper accepts, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def collect(self) -> Iterator[Family]:
        """Yield the metrics for prometheus-client."""
        for metric in METRICS:
            if metric.type == "histogram":
                family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
                for labels, histogram in self._times[metric.name].items():
                    histogram.add_to(family, labels)
                yield family
                continue
            make = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
            counted = make(metric.name, metric.help, labels=metric.labels)
            for labels, count in self._counts[metric.name].items():
                counted.add_metric(labels, count)
            yield counted

    # Instruments

    def request_began(self, kind: str, name: str, method: str, traceparent: str | None) -> Any:
        return kind, method if method in _METHODS else "other", perf_counter()

    def request_ended(self, trace: Any, status: int) -> None:
        kind, method, began = trace
        self._counts["plait_requests_total"][kind, method, str(status)] += 1
        self._times["plait_request_seconds"][kind, method].observe(perf_counter() - began)

    def message_began(self, kind: str, name: str, type: str, traceparent: str | None) -> Any:
        return kind, type, perf_counter()

    def message_ended(self, trace: Any, outcome: str) -> None:
        kind, type, began = trace
        self._messages[kind, type, outcome] += 1
        self._message_seconds[kind, type].observe(perf_counter() - began)

    def turn_began(self, kind: str, name: str, turn: str, waited: float, parent: Any) -> Any:
        self._running[kind,] += 1
        self._waits[kind,].observe(waited)
        return kind, turn

    def turn_ended(self, trace: Any, seconds: float, outcome: str) -> None:
        kind, turn = trace
        self._running[kind,] -= 1
        self._turns[kind, turn, outcome] += 1
        self._turn_seconds[trace].observe(seconds)

    def change_made(self, kind: str, name: str, size: int, parent: Any) -> Any:
        self._bytes[kind,].observe(size)
        return (kind,)

    def change_committed(self, trace: Any, seconds: float, batch: int) -> None:
        self._changes[trace[0], "ok"] += 1
        self._commit_seconds[trace].observe(seconds)
        self._writes.observe(batch)

    def change_failed(self, trace: Any, code: str) -> None:
        self._changes[trace[0], code] += 1

    def change_sent(self, trace: Any, connections: int) -> None:
        self._sent[trace] += connections

    def socket_opened(self, protocol: str) -> None:
        self._counts["plait_sockets"][protocol,] += 1
        self._counts["plait_sockets_opened_total"][protocol,] += 1

    def socket_closed(self, protocol: str, code: int) -> None:
        self._counts["plait_sockets"][protocol,] -= 1
        self._counts["plait_sockets_closed_total"][protocol, str(code) if code in _CODES else "other"] += 1

    def joined(self, kind: str, protocol: str, sent: str) -> None:
        self._counts["plait_joins_total"][kind, protocol, sent] += 1

    def woke(self, kind: str, seconds: float) -> None:
        self._counts["plait_threads_awake"][kind,] += 1
        self._times["plait_wake_seconds"][kind,].observe(seconds)

    def slept(self, kind: str) -> None:
        self._counts["plait_threads_awake"][kind,] -= 1
        self._counts["plait_sleeps_total"][kind,] += 1

    def push_answered(self, kind: str, outcome: str) -> None:
        self._pushes[kind, outcome] += 1

    def reader_lagged(self, kind: str) -> None:
        self._counts["plait_slow_readers_total"][kind,] += 1

    def limit_hit(self, limit: str) -> None:
        self._counts["plait_limits_hit_total"][limit,] += 1

    def store_failed(self, code: str) -> None:
        self._counts["plait_store_errors_total"][code,] += 1
