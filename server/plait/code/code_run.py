"""The handle of a running program, and its outcome."""

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
from msgspec.structs import replace

from plait.author_code import call
from plait.code.child import finish
from plait.errors import PlaitError
from plait_schemas.codec import UNENCODABLE
from plait_schemas.encoding import encode_given

__all__ = [
    "MOST_OUTPUT",
    "CodeHost",
    "CodeLog",
    "CodeResult",
    "CodeRun",
    "CodeStatus",
    "Memory",
    "Program",
    "Report",
    "TooMuchOutput",
    "answer_call",
]

log = logging.getLogger("plait.code")

MOST_OUTPUT: Final = 1024 * 1024
"""Bytes of a program's log and reports, and of each value that it sends."""

# Programs that run at once in a process of plait; others wait.
_AT_ONCE: Final = 8

Memory = Annotated[float, msgspec.Meta(gt=0, le=1 << 40)]
"""Bytes of memory that a program may be given."""

Report = Callable[[Any], object]
"""Is called with each value that a program reports."""


CodeStatus = Literal["success", "error", "link_error", "memory", "terminated"]
"""How a program has ended: `link_error` if it did not begin, and `terminated` by a time limit or from outside."""


class CodeLog(msgspec.Struct, frozen=True):
    """A line that a program has logged, at the level of the method of `console`."""

    level: str
    text: str


class CodeResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a program: its value, or the text of its error, and its log."""

    status: CodeStatus
    value: Any = None
    error: str | None = None
    logs: Sequence[CodeLog] = ()


class CodeHost:
    """Limits how many programs of a node run at once."""

    def __init__(self) -> None:
        self.gate = asyncio.Semaphore(_AT_ONCE)

    def close(self) -> None:
        """Do nothing: programs belong to threads, and have ended with them."""


class TooMuchOutput(Exception):
    """A program has logged and reported more than it may."""


class Program(Protocol):
    """A program with its options."""

    async def run(self, run: "CodeRun") -> CodeResult:
        """Run the program, and return its outcome, without its log.

        Raises TooMuchOutput, ModuleNotFoundError if its language is not installed, and OSError.
        """
        ...


class CodeRun:
    """A running program. Awaiting it returns the CodeResult, and never raises an error of the program.

    If the task that awaits it is cancelled, so is the program.
    """

    def __init__(
        self,
        make: Callable[[], Program],
        host: CodeHost,
        *,
        timeout: float | None = None,
        report: Report | None = None,
    ) -> None:
        self._loop = loop = asyncio.get_running_loop()
        # The values that the program has reported so far.
        self.reports: list[Any] = []
        self._logs: list[CodeLog] = []
        self._output = 0
        self._report = report
        self._reason = ""
        self._began: float | None = None
        self._ended: float | None = None
        self._result: asyncio.Future[CodeResult] = loop.create_future()
        program: Program | str
        try:
            if timeout is not None and not timeout > 0:
                raise ValueError(f"timeout must be above 0, or None, not {timeout!r}")
            program = make()
        except UNENCODABLE as error:
            program = f"InvalidCodeExecutionOptions: {error}"
        self._task = loop.create_task(self._run(program, host.gate, timeout), name="plait code")
        self._task.add_done_callback(self._end)

    def __await__(self) -> Generator[Any, None, CodeResult]:
        return self._join().__await__()

    @property
    def running(self) -> bool:
        """Whether the program has not ended; it may still wait until other programs have."""
        return not self._result.done()

    @property
    def duration(self) -> float:
        """The seconds that the program has run."""
        if self._began is None:
            return 0.0
        return (self._ended or self._loop.time()) - self._began

    def terminate(self, reason: str = "the program was terminated") -> None:
        """End the program; its result has the status `terminated`. Does nothing if it has ended."""
        if self.running and not self._reason:
            self._reason = reason
            self._task.cancel()

    async def finish(self) -> None:
        """Wait until the program has ended and its process is gone; terminate it if this task is cancelled."""
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            self.terminate("the thread has stopped")
            await finish(self._task)
            raise

    # For the code that runs the program

    def add_log(self, level: str, text: str, *, size: int) -> None:
        """Add to the log of the program. Raises TooMuchOutput."""
        self._count(size)
        self._logs.append(CodeLog(level, text))

    def add_report(self, value: Any, *, size: int) -> None:
        """Add a value that the program reports. Raises TooMuchOutput."""
        self._count(size)
        self.reports.append(value)
        if self._report is not None:
            self._report(value)

    def _count(self, size: int) -> None:
        self._output += size
        if self._output > MOST_OUTPUT:
            raise TooMuchOutput(f"the program has logged and reported more than {MOST_OUTPUT} bytes")

    # Inside

    async def _run(self, program: Program | str, gate: asyncio.Semaphore, timeout: float | None) -> CodeResult:
        if isinstance(program, str):
            return CodeResult("link_error", error=program)
        async with gate:
            self._began = self._loop.time()
            limit = asyncio.timeout(timeout)
            try:
                async with limit:
                    return await program.run(self)
            except TimeoutError:
                if not limit.expired():
                    raise
                return CodeResult("terminated", error=f"the program took longer than {timeout:g} s")
            except TooMuchOutput as error:
                return CodeResult("error", error=str(error))
            except ModuleNotFoundError as error:
                return CodeResult("link_error", error=str(error))

    def _end(self, task: "asyncio.Task[CodeResult]") -> None:
        self._ended = self._loop.time()
        if task.cancelled():
            result = CodeResult("terminated", error=self._reason or "the program was cancelled")
        elif (error := task.exception()) is not None:
            log.error("a program could not be run", exc_info=error)
            result = CodeResult("error", error="the program could not be run; the log of the server has the reason")
        else:
            result = task.result()
        self._result.set_result(replace(result, logs=tuple(self._logs)))

    async def _join(self) -> CodeResult:
        try:
            return await asyncio.shield(self._result)
        except asyncio.CancelledError:
            self.terminate("the task that waited for the program was cancelled")
            raise


async def answer_call(function: Callable[[], Any]) -> dict[str, Any]:
    """Call a function for a program. Of an error, the program learns the class, and the text only of a PlaitError."""
    try:
        return {"value": msgspec.Raw(encode_given(await call(function)))}
    except Exception as error:
        log.debug("a function that a program has called has raised", exc_info=error)
        text = str(error) if isinstance(error, PlaitError) else ""
        return {"error": {"name": type(error).__name__, "message": text}}
