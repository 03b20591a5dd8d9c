"""Metrics for Prometheus, with the extra `plait[metrics]`.

prometheus-client's own counters take a lock and look up their labels each time, which would cost as much as a small
rpc. The counters here are plain numbers, which only the event loop changes. They become prometheus-client's metrics
when they are read; any OS thread may read them, as it reads copies. prometheus-client is imported on first use, as it
is optional.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from plait.instruments.protocol import HTTP_METHODS, NoInstruments
from plait.instruments.series import AT_ONCE, Counter, Histogram, Made, Series, add_fine, make_histogram
from plait_schemas import codes

__all__ = ["METRICS", "Family", "Metric", "Metrics"]


class Registry(Protocol):
    """A `CollectorRegistry` of prometheus-client."""

    def register(self, collector: Any) -> None:
        """Add a collector, which is read with the registry."""
        ...


class Family(msgspec.Struct, frozen=True, array_like=True):
    """The samples of a metric of one process: their names, labels and values."""

    name: str
    help: str
    type: str
    unit: str
    samples: list[tuple[str, dict[str, str], float]]


class Metric(NamedTuple):
    """One metric: its name, its type, its labels, and its help text."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    # The upper bounds of a histogram's buckets.
    bounds: tuple[float, ...] = ()


_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BYTES: Final = (64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0)
_ASLEEP: Final = (1.0, 60.0, 600.0, 3600.0, 86400.0, 604800.0, 2592000.0)
_WRITES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)

METRICS: Final = (
    Metric("plait_requests_total", "counter", ("kind", "method", "status"), "HTTP requests for threads"),
    Metric("plait_request_seconds", "histogram", ("kind", "method"), "Time until the answer was sent", _SECONDS),
    Metric("plait_sockets", "gauge", ("protocol",), "Open sockets"),
    Metric("plait_sockets_opened_total", "counter", ("protocol",), "Sockets that were opened"),
    Metric("plait_sockets_closed_total", "counter", ("protocol", "code"), "Sockets that were closed"),
    Metric("plait_joins_total", "counter", ("kind", "protocol", "sent"), "Joins, by the data sent"),
    Metric("plait_messages_total", "counter", ("kind", "type", "outcome"), "Messages on sockets"),
    Metric("plait_message_seconds", "histogram", ("kind", "type"), "Time until a message was answered", _SECONDS),
    Metric("plait_pushes_total", "counter", ("kind", "outcome"), "Pushes, by their answers"),
    Metric("plait_turns_total", "counter", ("kind", "turn", "outcome"), "Turns: hooks, rpcs and requests"),
    Metric("plait_turn_seconds", "histogram", ("kind", "turn"), "Time that turns ran", _SECONDS),
    Metric("plait_turn_wait_seconds", "histogram", ("kind",), "Time that turns waited for others", _SECONDS),
    Metric("plait_blocked_seconds", "histogram", ("kind", "turn"), "Time that turns blocked the event loop", _SECONDS),
    Metric("plait_turns_running", "gauge", ("kind",), "Turns that run"),
    Metric("plait_task_runs_total", "counter", ("kind", "task", "status"), "Runs of tasks that ended"),
    Metric("plait_task_steps_total", "counter", ("kind", "task", "outcome"), "Attempts at steps of tasks"),
    Metric("plait_task_step_seconds", "histogram", ("kind", "task"), "Time of attempts at steps", _SECONDS),
    Metric("plait_task_asleep_seconds", "histogram", ("kind", "task"), "Time that runs of tasks waited", _ASLEEP),
    Metric("plait_changes_total", "counter", ("kind", "outcome"), "Changes that were stored, or failed"),
    Metric("plait_change_bytes", "histogram", ("kind",), "Bytes of the operations of a change", _BYTES),
    Metric("plait_changes_sent_total", "counter", ("kind",), "Changes sent, by connection that follows the state"),
    Metric("plait_commit_seconds", "histogram", ("kind",), "Time until a change was durable", _SECONDS),
    Metric("plait_commit_writes", "histogram", (), "Writes in the transaction of a change", _WRITES),
    Metric("plait_store_errors_total", "counter", ("code",), "Reads and writes of a thread that failed"),
    Metric("plait_threads_awake", "gauge", ("kind",), "Threads that are awake"),
    Metric("plait_wake_seconds", "histogram", ("kind",), "Time that threads took to wake", _SECONDS),
    Metric("plait_sleeps_total", "counter", ("kind",), "Awake threads that went to sleep or ended"),
    Metric("plait_slow_readers_total", "counter", ("kind",), "Times that a client read too slowly"),
    Metric("plait_shards", "gauge", (), "Shards that this node owns"),
    Metric("plait_shards_taken_total", "counter", (), "Shards without an owner that this node has taken"),
    Metric("plait_lease_age_seconds", "gauge", (), "Time since the last successful beat of this node"),
    Metric("plait_beats_failed_total", "counter", (), "Beats of this node that have failed"),
    Metric("plait_links", "gauge", (), "Links to other processes"),
    Metric("plait_link_bytes_sent_total", "counter", (), "Bytes sent on links"),
    Metric("plait_link_bytes_received_total", "counter", (), "Bytes received on links"),
    Metric("plait_relayed_sockets", "gauge", (), "Sockets whose threads other processes own"),
    Metric("plait_held", "gauge", (), "Sockets, requests and calls that wait for another process"),
    Metric("plait_limits_hit_total", "counter", ("limit",), "Times that a client exceeded a limit"),
)

# Known close codes. A peer may choose any code: all others are counted together.
_CODES: Final = frozenset({*range(1000, 1016), *(value for value in vars(codes).values() if isinstance(value, int))})


class _OfKind:
    """The series of one kind that every message, turn and change uses.

    One look-up by kind costs less than several with all labels.
    """

    __slots__ = ("commits", "messages", "sizes", "turns", "waits")

    def __init__(self, kind: str, histograms: dict[str, Histogram]) -> None:
        turns, messages = histograms["plait_turn_seconds"], histograms["plait_message_seconds"]
        self.waits = histograms["plait_turn_wait_seconds"][kind,]
        self.sizes = histograms["plait_change_bytes"][kind,]
        self.commits = histograms["plait_commit_seconds"][kind,]
        self.turns = Made[str, Series](lambda name: turns[kind, name])
        self.messages = Made[str, Series](lambda type: messages[kind, type])


class Metrics(NoInstruments):
    """Counts the events of one app; `Plait(metrics=True)` makes an instance and serves it at `/metrics`.

    With `Plait(instruments=Metrics(registry))`, the metrics are read together with the others of that registry instead.
    """

    def __init__(self, registry: Registry | None = None) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector  # noqa: PLC0415

        self._counters = {each.name: Counter(int) for each in METRICS if each.type != "histogram"}
        self._histograms = {each.name: make_histogram(each.bounds) for each in METRICS if each.type == "histogram"}
        # Attributes, as every message, turn and change uses these. Counters by outcome count only outcomes other than
        # `ok`, as the histograms contain the rest.
        self._messages, self._message_seconds = self._get("plait_messages_total", "plait_message_seconds")
        self._turns, self._turn_seconds = self._get("plait_turns_total", "plait_turn_seconds")
        self._changes, self._commit_seconds = self._get("plait_changes_total", "plait_commit_seconds")
        self._pushes, self._waits = self._get("plait_pushes_total", "plait_turn_wait_seconds")
        self._steps, self._step_seconds = self._get("plait_task_steps_total", "plait_task_step_seconds")
        self._writes = self._histograms["plait_commit_writes"][()]
        # Functions with further values.
        self._measures: list[Callable[[], Mapping[str, float]]] = []
        self._kinds = Made[str, _OfKind](lambda kind: _OfKind(kind, self._histograms))
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
        self.registry: Any = registry
        registry.register(self)

    def read(
        self, accept: str = "", *, workers: Mapping[int, Sequence[Family] | None] | None = None
    ) -> tuple[bytes, str]:
        """Return the metrics as text, in the format that a scraper accepts, and its content type.

        With `workers`, the metrics come from several processes, with the label `worker`; None for a worker that is
        away.
        """
        from prometheus_client import exposition  # noqa: PLC0415

        source = self.registry if workers is None else _Merged(workers)
        try:
            encode, content_type = exposition.choose_encoder(accept)
            return encode(source), content_type
        except TypeError:  # prometheus-client cannot compare the version that the scraper wants.
            encode, content_type = exposition.choose_encoder("")
            return encode(source), content_type

    def snapshot(self) -> list[Family]:
        """Return the metrics of this process."""
        return [
            Family(
                each.name,
                each.documentation,
                each.type,
                each.unit,
                [(sample.name, sample.labels, sample.value) for sample in each.samples],
            )
            for each in self.registry.collect()
        ]

    def collect(self) -> Iterator[Any]:
        """Yield the metrics for prometheus-client."""
        from prometheus_client import core  # noqa: PLC0415

        derived = self._derive()
        for metric in METRICS:
            if metric.type == "histogram":
                family = core.HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
                for series in self._histograms[metric.name].copy().values():
                    family.add_metric(series.labels, *series.sum_up())
                yield family
                continue
            make = core.CounterMetricFamily if metric.type == "counter" else core.GaugeMetricFamily
            counted = make(metric.name, metric.help, labels=metric.labels)
            for labels, count in derived.get(metric.name, self._counters[metric.name].copy()).items():
                counted.add_metric(labels, count)
            yield counted

    def _get(self, counter: str, histogram: str) -> tuple[Counter, Histogram]:
        return self._counters[counter], self._histograms[histogram]

    def _derive(self) -> Mapping[str, Mapping[tuple[str, ...], float]]:
        """Return the counters that follow from histograms, and the values of other functions."""
        running = Counter(int)
        # Ended turns are counted first, so that none of them is missing among the begun turns.
        for (kind, _), ran in self._turn_seconds.copy().items():
            running[kind,] -= ran.count
        for labels, waited in self._waits.copy().items():
            running[labels] += waited.count
        return {
            **{name: {(): value} for read in self._measures for name, value in read().items()},
            "plait_messages_total": add_fine(self._messages, self._message_seconds),
            "plait_turns_total": add_fine(self._turns, self._turn_seconds),
            "plait_task_steps_total": add_fine(self._steps, self._step_seconds),
            "plait_changes_total": add_fine(self._changes, self._commit_seconds),
            "plait_turns_running": running,
            "plait_changes_sent_total": Counter(
                int, {labels: each.sent for labels, each in self._commit_seconds.copy().items()}
            ),
        }

    # Instruments

    def request_began(self, kind: str, name: str, method: str, traceparent: str | None) -> Any:
        return kind, method if method in HTTP_METHODS else "other", perf_counter()

    def request_ended(self, trace: Any, status: int) -> None:
        kind, method, began = trace
        self._counters["plait_requests_total"][kind, method, str(status)] += 1
        self._histograms["plait_request_seconds"][kind, method].add(perf_counter() - began)

    def message_began(self, kind: str, name: str, type: str, traceparent: str | None) -> Any:
        series = self._kinds[kind].messages[type]
        if len(series.waiting) >= AT_ONCE:
            series.flush()
        return series, perf_counter()

    def message_ended(self, trace: Any, outcome: str) -> None:
        series, began = trace
        if outcome == "ok":
            series.waiting.append(perf_counter() - began)
        else:
            series.add_failed(perf_counter() - began)
            self._messages[*series.labels, outcome] += 1

    def turn_began(self, kind: str, name: str, turn: str, waited: float, parent: Any) -> Any:
        found = self._kinds[kind]
        waiting = found.waits.waiting
        waiting.append(waited)
        if len(waiting) >= AT_ONCE:
            # The number of ended turns of the kind is an upper bound.
            for each in (found.waits, *found.turns.values()):
                each.flush()
        return found.turns[turn]

    def turn_ended(self, trace: Any, seconds: float, outcome: str) -> None:
        if outcome == "ok":
            trace.waiting.append(seconds)
        else:
            trace.add_failed(seconds)
            self._turns[*trace.labels, outcome] += 1

    def step_began(self, kind: str, name: str, task: str, step: str, parent: Any) -> Any:
        return self._step_seconds[kind, task]

    def step_ended(self, trace: Any, seconds: float, outcome: str) -> None:
        if outcome == "ok":
            trace.add(seconds)
        else:
            trace.add_failed(seconds)
            self._steps[*trace.labels, outcome] += 1

    def task_slept(self, kind: str, task: str, seconds: float) -> None:
        self._histograms["plait_task_asleep_seconds"][kind, task].add(seconds)

    def task_ended(self, kind: str, task: str, status: str) -> None:
        self._counters["plait_task_runs_total"][kind, task, status] += 1

    def change_made(self, kind: str, name: str, size: int, parent: Any) -> Any:
        found = self._kinds[kind]
        waiting = found.sizes.waiting
        waiting.append(size)
        if len(waiting) >= AT_ONCE:
            # The number of committed changes of the kind is an upper bound.
            for each in (found.sizes, found.commits, self._writes):
                each.flush()
        return found.commits

    def change_committed(self, trace: Any, seconds: float, batch: int) -> None:
        trace.waiting.append(seconds)
        self._writes.waiting.append(batch)

    def change_failed(self, trace: Any, code: str) -> None:
        self._changes[*trace.labels, code] += 1

    def change_sent(self, trace: Any, connections: int) -> None:
        trace.sent += connections

    def socket_opened(self, protocol: str) -> None:
        self._counters["plait_sockets"][protocol,] += 1
        self._counters["plait_sockets_opened_total"][protocol,] += 1

    def socket_closed(self, protocol: str, code: int) -> None:
        self._counters["plait_sockets"][protocol,] -= 1
        self._counters["plait_sockets_closed_total"][protocol, str(code) if code in _CODES else "other"] += 1

    def joined(self, kind: str, protocol: str, sent: str) -> None:
        self._counters["plait_joins_total"][kind, protocol, sent] += 1

    def woke(self, kind: str, seconds: float) -> None:
        self._counters["plait_threads_awake"][kind,] += 1
        self._histograms["plait_wake_seconds"][kind,].add(seconds)

    def slept(self, kind: str) -> None:
        self._counters["plait_threads_awake"][kind,] -= 1
        self._counters["plait_sleeps_total"][kind,] += 1

    def push_answered(self, kind: str, outcome: str) -> None:
        self._pushes[kind, outcome] += 1

    def reader_lagged(self, kind: str) -> None:
        self._counters["plait_slow_readers_total"][kind,] += 1

    def loop_blocked(self, kind: str, turn: str, seconds: float) -> None:
        self._histograms["plait_blocked_seconds"][kind, turn].add(seconds)

    def limit_hit(self, limit: str) -> None:
        self._counters["plait_limits_hit_total"][limit,] += 1

    def measure_cluster(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._measures.append(read)

    def store_failed(self, code: str) -> None:
        self._counters["plait_store_errors_total"][code,] += 1


class _Merged:
    """The metrics of several processes, for prometheus-client."""

    def __init__(self, workers: Mapping[int, Sequence[Family] | None]) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Any]:
        """Yield each metric, with the samples of all processes."""
        from prometheus_client import core  # noqa: PLC0415

        up = core.GaugeMetricFamily("plait_worker_up", "Whether a worker answers", labels=("worker",))
        found: dict[str, Any] = {"plait_worker_up": up}
        for worker, families in sorted(self._workers.items()):
            up.add_metric((str(worker),), families is not None)
            for each in families or ():
                metric = found.setdefault(each.name, core.Metric(each.name, each.help, each.type, each.unit))
                for name, labels, value in each.samples:
                    metric.add_sample(name, labels | {"worker": str(worker)}, value)
        yield from found.values()
