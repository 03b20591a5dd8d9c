"""Traces for OpenTelemetry, with the extra `plait[otel]`; the app sets up the SDK and its exporters."""

from collections.abc import Mapping
from contextvars import Token
from typing import Any, Final

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from plait.instruments.protocol import HTTP_METHODS, NoInstruments

__all__ = ["OpenTelemetry"]

_Attributes = Mapping[str, str | int | float]

_PROPAGATOR: Final = TraceContextTextMapPropagator()
# Outcomes that do not count as errors of a span.
_FINE: Final = frozenset({"ok", "cancelled"})


class _Trace:
    """A span, and, for a turn or a step, the token that detaches it."""

    __slots__ = ("span", "token")

    def __init__(self, span: Span, token: Token[Context] | None = None) -> None:
        self.span = span
        self.token = token


class OpenTelemetry(NoInstruments):
    """Makes spans of requests, messages, turns, steps of tasks, changes and their sending.

    Use it as `Plait(instruments=OpenTelemetry())`. Each span is a child of its cause. During a turn, the turn's span is
    the current one, so spans of the author's code are its children. Without `tracer_provider`, the global one is used.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = get_tracer("plait", tracer_provider=tracer_provider)

    def request_began(self, kind: str, name: str, method: str, traceparent: str | None) -> Any:
        # Middleware may have begun a span for the request already.
        context = None if get_current_span().get_span_context().is_valid else _read(traceparent)
        # OpenTelemetry's name for unknown methods.
        verb, method = (method, method) if method in HTTP_METHODS else ("HTTP", "_OTHER")
        attributes = {"plait.kind": kind, "plait.thread": name, "http.request.method": method}
        return self._start(f"{verb} {kind}".rstrip(), context, attributes, SpanKind.SERVER)

    def request_ended(self, trace: Any, status: int) -> None:
        if trace is not None:
            trace.span.set_attribute("http.response.status_code", status)
            if status >= 500:
                trace.span.set_status(Status(StatusCode.ERROR))
            trace.span.end()

    def message_began(self, kind: str, name: str, type: str, traceparent: str | None) -> Any:
        attributes = {"plait.kind": kind, "plait.thread": name, "plait.message": type}
        return self._start(f"{type} {kind}", _read(traceparent), attributes, SpanKind.SERVER)

    def message_ended(self, trace: Any, outcome: str) -> None:
        _end(trace, outcome)

    def turn_began(self, kind: str, name: str, turn: str, waited: float, parent: Any) -> Any:
        attributes: _Attributes = {"plait.kind": kind, "plait.thread": name, "plait.turn": turn, "plait.waited": waited}
        return self._enter(f"{turn} {kind}", parent, attributes)

    def turn_ended(self, trace: Any, seconds: float, outcome: str) -> None:
        if trace is not None and trace.token is not None:
            detach(trace.token)
        _end(trace, outcome)

    def step_began(self, kind: str, name: str, task: str, step: str, parent: Any) -> Any:
        attributes: _Attributes = {"plait.kind": kind, "plait.thread": name, "plait.task": task, "plait.step": step}
        return self._enter(f"step {task} {kind}", parent, attributes)

    def step_ended(self, trace: Any, seconds: float, outcome: str) -> None:
        self.turn_ended(trace, seconds, outcome)

    def make_traceparent(self, trace: Any) -> str | None:
        if trace is None:
            return None
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(trace.span, Context()))
        return carrier.get("traceparent")

    def enter_trace(self, traceparent: str) -> None:
        attach(_read(traceparent))

    def find_parent(self) -> Any:
        span = get_current_span()
        return _Trace(span) if span.get_span_context().is_valid else None

    def change_made(self, kind: str, name: str, size: int, parent: Any) -> Any:
        attributes: _Attributes = {"plait.kind": kind, "plait.thread": name, "plait.bytes": size}
        return self._start(f"change {kind}", _make_context(parent), attributes)

    def change_committed(self, trace: Any, seconds: float, batch: int) -> None:
        if trace is not None:
            trace.span.set_attribute("plait.batch", batch)
        _end(trace, "ok")

    def change_failed(self, trace: Any, code: str) -> None:
        _end(trace, code)

    def change_sent(self, trace: Any, connections: int) -> None:
        if trace is not None:
            sent = self._start("send", _make_context(trace), {"plait.connections": connections}, SpanKind.PRODUCER)
            sent.span.end()

    def _enter(self, name: str, parent: Any, attributes: _Attributes) -> _Trace:
        """Start a span, and make it the current one."""
        trace = self._start(name, _make_context(parent), attributes)
        trace.token = attach(set_span_in_context(trace.span))
        return trace

    def _start(
        self,
        name: str,
        context: Context | None,
        attributes: _Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> _Trace:
        return _Trace(self._tracer.start_span(name, context, kind, attributes))


def _read(traceparent: str | None) -> Context:
    """Return the context of a `traceparent` header; an empty context for a missing or invalid header."""
    return Context() if traceparent is None else _PROPAGATOR.extract({"traceparent": traceparent}, Context())


def _make_context(parent: Any) -> Context | None:
    """Return the context for a child of a trace; None, for the current one, if there is no trace."""
    return None if parent is None else set_span_in_context(parent.span, Context())


def _end(trace: Any, outcome: str) -> None:
    if trace is not None:
        trace.span.set_attribute("plait.outcome", outcome)
        if outcome not in _FINE:
            trace.span.set_status(Status(StatusCode.ERROR, outcome))
        trace.span.end()
