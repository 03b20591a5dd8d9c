"""Runs programs in a part of Python, by the interpreter Monty, in a process of its own."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any, Final

import msgspec

from plait.code.code_run import MOST_OUTPUT, CodeResult, CodeRun, Memory, TooMuchOutput, answer_call
from plait_schemas.codec import decode_json
from plait_schemas.encoding import EncodeError, encode_given

__all__ = ["PYTHON_MEMORY", "Python"]

PYTHON_MEMORY: Final = 16 * 1024 * 1024
"""Bytes of memory that a program has by default, so few that its result never holds the loop for long."""

# Seconds of running and of sleeping, and the calls of functions.
_SECONDS: Final = 60.0
_MOST_CALLS: Final = 100_000
# Bytes that a text or a report counts beside its own.
_OVERHEAD: Final = 32


class Python:
    """A program and its options. Raises ValueError or TypeError if they are not valid."""

    def __init__(
        self,
        source: str,
        *,
        globals: Mapping[str, Any] = {},
        memory_limit: float = PYTHON_MEMORY,
        filename: str = "<runPython>",
    ) -> None:
        self._source = msgspec.convert(source, str)
        self._filename = msgspec.convert(filename, str)
        self._memory = int(msgspec.convert(memory_limit, Memory))
        given = msgspec.convert(globals, dict[str, Any])
        self._functions = {name: value for name, value in given.items() if callable(value)}
        self._values = {name: decode_json(encode_given(each)) for name, each in given.items() if not callable(each)}

    async def run(self, run: CodeRun) -> CodeResult:
        """Run the program, and return its outcome, without its log. Raises what `Program.run` raises."""
        monty, loop = await asyncio.to_thread(_load), asyncio.get_running_loop()
        calls = set[asyncio.Task[Any]]()
        excess: list[TooMuchOutput] = []
        limits = {
            "max_memory": self._memory,
            "max_feed_duration_secs": _SECONDS,
            "max_suspensions": _MOST_CALLS,
            "max_total_sleep_secs": _SECONDS,
        }

        def count(add: Callable[..., None], *args: Any, size: int) -> None:
            try:
                if not excess:
                    add(*args, size=size + _OVERHEAD)
            except TooMuchOutput as error:
                excess.append(error)
                feed.cancel()

        # Monty calls both functions in threads of its own.
        def log(stream: str, text: str) -> None:
            level, size = "log" if stream == "stdout" else "error", len(text.encode())
            loop.call_soon_threadsafe(partial(count, run.add_log, level, text, size=size))

        def report(value: Any) -> None:
            data = encode_given(value)
            loop.call_soon_threadsafe(partial(count, run.add_report, decode_json(data), size=len(data)))

        functions = {name: _lend(each, calls) for name, each in self._functions.items()}
        lent = {"report": report, **functions, **self._values}
        try:
            async with (
                monty.AsyncMonty(min_processes=0, max_processes=1) as pool,
                pool.checkout(script_name=self._filename, limits=limits) as session,
            ):
                os.setpriority(os.PRIO_PROCESS, session.worker_pid, 19)
                feed = asyncio.ensure_future(session.feed_run(self._source, external_lookup=lent, print_callback=log))
                return _read(await feed)
        except asyncio.CancelledError:
            if excess:
                raise excess[0] from None
            raise
        except monty.MontyError as error:
            return self._explain(monty, error)
        finally:
            for task in calls:
                task.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def _explain(self, monty: ModuleType, error: Any) -> CodeResult:
        """Return the outcome of a program that has failed."""
        inner = error.exception()
        if isinstance(inner, MemoryError):
            return CodeResult("memory", error=f"the program needed more than {self._memory} bytes of memory")
        if isinstance(inner, TimeoutError) and "time limit exceeded" in str(inner):
            return CodeResult("terminated", error=f"the program took more than {_SECONDS:g} s of processor time")
        text = error.display() if hasattr(error, "display") else f"{type(inner).__name__}: {inner}"
        text = text.replace("<python-input-0>", self._filename)
        return CodeResult("link_error" if isinstance(error, monty.MontySyntaxError) else "error", error=text)


def _lend(function: Callable[..., Any], calls: set[asyncio.Task[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a function as a program may call it; its task is in `calls` while it runs."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        calls.add(task)
        task.add_done_callback(calls.discard)
        answer = await answer_call(lambda: function(*args, **kwargs))
        if "error" in answer:
            raise RuntimeError(": ".join(filter(None, answer["error"].values())))
        return decode_json(answer["value"])

    return call


def _read(value: Any) -> CodeResult:
    try:
        data = encode_given(value)
    except EncodeError as error:
        return CodeResult("error", error=f"SerializationError: {error}")
    if len(data) > MOST_OUTPUT:
        return CodeResult("error", error=f"SerializationError: {len(data)} bytes are over the limit of {MOST_OUTPUT}")
    return CodeResult("success", decode_json(data))


def _load() -> ModuleType:
    """Return Monty. Raises ModuleNotFoundError without the extra `plait[code]`."""
    try:
        import pydantic_monty  # noqa: PLC0415
    except ModuleNotFoundError as error:
        what = "run_python needs Monty, of the extra plait[code]: pip install 'plait[code]'"
        raise ModuleNotFoundError(what, name=error.name) from None
    return pydantic_monty
