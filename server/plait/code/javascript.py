"""Runs programs in JavaScript or TypeScript, in a process of Deno without any permissions."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from plait.code.child import Child, forbid_files, open_program
from plait.code.code_run import MOST_OUTPUT, CodeResult, CodeRun, CodeStatus, Memory, TooMuchOutput, answer_call
from plait.errors import TooLarge
from plait.limits import Limits, check_weight
from plait_schemas.codec import NOT_JSON
from plait_schemas.encoding import encode_given

__all__ = ["MEMORY", "JavaScript", "find_deno"]

MEMORY: Final = 128 * 1024 * 1024
"""Bytes of memory that a program has by default."""

# Seconds of processor time, and the memory that Deno itself needs.
_SECONDS: Final = 60
_RUNTIME_MEMORY: Final = 64 * 1024 * 1024
# Bytes that are read at once, so that frames of a program never hold the loop for long; and calls that wait.
_AT_ONCE: Final = 16 * 1024
_MOST_CALLS: Final = 64
# What eight programs may send at once: their values are in memory together, and Python's garbage collector visits all.
_LIMITS: Final = Limits(weight=100_000)

_RUNNER: Final = str(Path(__file__).with_name("runner.js"))
_FLAGS: Final = ("--no-prompt", "--no-remote", "--no-npm", "--no-config", "--no-lock", "--cached-only")
# Deno has no folder, and so it stores nothing.
_ENVIRONMENT: Final = {"DENO_DIR": "/dev/null", "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1"}
_BARE: Final = "^[^./:][^:]*$"


class Log(msgspec.Struct, frozen=True, tag_field="type", tag="log"):
    level: str
    text: str


class Report(msgspec.Struct, frozen=True, tag_field="type", tag="report"):
    value: Any = None


class Call(msgspec.Struct, frozen=True, tag_field="type", tag="call"):
    id: int
    function: int
    args: list[Any]


class End(msgspec.Struct, frozen=True, tag_field="type", tag="end"):
    status: CodeStatus
    value: Any = None
    error: str | None = None


_Frame = Log | Report | Call | End
_decoder: Final[msgspec.json.Decoder[_Frame]] = msgspec.json.Decoder(_Frame)


class _Execute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fn: str = "default"
    args: list[Any] = []


class _Options(msgspec.Struct, frozen=True):
    source: str
    execute: _Execute | None = None
    language: Literal["typescript", "javascript"] = "typescript"
    globals: dict[str, Any] = {}
    imports: dict[Annotated[str, msgspec.Meta(pattern=_BARE)], dict[str, Any]] = {}
    modules: dict[Annotated[str, msgspec.Meta(pattern="^[.]/")], str] = {}
    memory_limit: Memory = MEMORY
    filename: str = "<runCode>"


class JavaScript:
    """A program with the options of `run_code`. Raises UNENCODABLE if they are not valid."""

    def __init__(self, source: str, **options: Any) -> None:
        given = msgspec.convert({"source": source, **options}, _Options)
        self.memory = int(given.memory_limit)
        self.functions: list[Callable[..., Any]] = []
        self.frame = _encode(
            {
                "source": given.source,
                "filename": given.filename,
                "language": given.language,
                "execute": given.execute or _Execute(),
                "globals": self._lend(given.globals),
                "imports": {name: self._lend(each) for name, each in given.imports.items()},
                "modules": given.modules,
                "limit": MOST_OUTPUT,
            }
        )

    def _lend(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values as the runner gets them: functions as their numbers."""
        lent = {}
        for name, value in values.items():
            if callable(value):
                lent[name] = {"call": len(self.functions)}
                self.functions.append(value)
            else:
                lent[name] = {"value": value}
        return lent

    async def run(self, run: CodeRun) -> CodeResult:
        """Run the program, and return its outcome, without its log. Raises TooMuchOutput and OSError."""
        megabytes = max(1, self.memory >> 20)
        v8 = f"--v8-flags=--jitless,--disallow-code-generation-from-strings,--max-old-space-size={megabytes}"
        command = [find_deno(), "run", *_FLAGS, v8, _RUNNER]
        calls = set[asyncio.Task[None]]()
        try:
            memory = self.memory + _RUNTIME_MEMORY
            async with open_program(command, memory=memory, seconds=_SECONDS, environment=_ENVIRONMENT) as child:
                lines = _read_lines(child)
                # The runner has started: it needs no more files.
                await anext(lines, b"")
                forbid_files(child)
                await _write(child, self.frame)
                async for line in lines:
                    match _read(line):
                        case End(status, value, error):
                            return CodeResult(status, value, error)
                        case Log(level, text):
                            run.add_log(level, text, size=len(line))
                        case Report(value):
                            run.add_report(value, size=len(line))
                        case Call() as call:
                            calls.add(task := asyncio.create_task(self._answer(child, call)))
                            task.add_done_callback(calls.discard)
                            if len(calls) >= _MOST_CALLS:
                                await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                return self._explain(await child.wait())
        finally:
            # This comes after the end of the process, because the called functions may take their time.
            for task in calls:
                task.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def _answer(self, child: Child, call: Call) -> None:
        answer = await answer_call(lambda: self.functions[call.function](*call.args))
        await _write(child, _encode({"id": call.id, **answer}))

    def _explain(self, exit_code: int) -> CodeResult:
        """Return the outcome of a program whose process has ended before the program."""
        if exit_code == -signal.SIGXCPU:
            return CodeResult("terminated", error=f"the program took more than {_SECONDS} s of processor time")
        if exit_code < 0:
            return CodeResult("memory", error=f"the program needed more than {self.memory} bytes of memory")
        return CodeResult("error", error=f"the process of the program has ended with the code {exit_code}")


def find_deno() -> str:
    """Return the path of Deno. Raises ModuleNotFoundError without the extra `plait[code]`."""
    try:
        from deno import find_deno_bin  # type: ignore[import-untyped]  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "run_code needs Deno, of the extra plait[code]: pip install 'plait[code]'", name=error.name
        ) from None
    return str(find_deno_bin())


def _encode(value: Any) -> bytes:
    return encode_given(value) + b"\n"


async def _write(child: Child, data: bytes) -> None:
    with suppress(ConnectionError):  # The process has ended; reading tells how.
        child.stdin.write(data)
        await child.stdin.drain()


async def _read_lines(child: Child) -> AsyncIterator[bytes]:
    rest = b""
    while chunk := await child.stdout.read(_AT_ONCE):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > MOST_OUTPUT:
            raise TooMuchOutput(f"the program has sent more than {MOST_OUTPUT} bytes at once")
        await asyncio.sleep(0)


def _read(line: bytes) -> _Frame:
    try:
        check_weight("value", line, _LIMITS)
        return _decoder.decode(line)
    except TooLarge as error:
        return End("error", error=str(error))
    except NOT_JSON as error:
        return End("error", error=f"what the program has sent cannot be read: {error}")
