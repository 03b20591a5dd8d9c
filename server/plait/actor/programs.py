"""The programs of a thread, which end with the thread."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from plait.actor.outcome import Done
from plait.actor.per_actor import PerActor, Service
from plait.code.code_run import CodeHost, CodeRun, Program, Report
from plait.code.javascript import MEMORY, JavaScript
from plait.code.python import PYTHON_MEMORY, Python
from plait.state.pipeline import Pipeline

__all__ = ["ProgramActor", "RunsCode", "terminate_programs"]

S = TypeVar("S", bound=Service)


class ProgramActor(Protocol):
    """The part of an actor that its programs use; `Actor` describes the members."""

    # The values that other packages keep on the actor.
    parts: dict[PerActor[Any], Any] | None

    def begin(self, name: str, work: Callable[[], object], done: Done) -> object: ...

    def use_service(self, cls: type[S]) -> S: ...

    @property
    def state(self) -> Pipeline: ...


_PROGRAMS: Final = PerActor[set[CodeRun]](lambda _: set())


def terminate_programs(actor: ProgramActor) -> None:
    """End the programs of a thread, as it was terminated."""
    for run in tuple(_PROGRAMS.of(actor)):
        run.terminate("the thread was terminated")


class RunsCode:
    """The methods of a thread that run programs."""

    _actor: Any

    def run_code(
        self,
        source: str,
        *,
        execute: Mapping[str, Any] | None = None,
        language: str = "typescript",
        globals: Mapping[str, Any] = {},
        imports: Mapping[str, Mapping[str, Any]] = {},
        modules: Mapping[str, str] = {},
        timeout: float | None = None,
        memory_limit: float = MEMORY,
        filename: str = "<runCode>",
        report: Report | None = None,
    ) -> CodeRun:
        """Run a program in TypeScript or JavaScript in a process of its own, which has no access to the server.

        Awaiting the result returns a CodeResult, and never raises an error of the program. The result's value is the
        default export, or the value that it returns if it is a function; `execute={"fn": "main", "args": [1]}` calls
        another export. `imports` are modules of values and functions, `globals` are values and functions, and `modules`
        are sources by names such as "./shapes". Functions may be async; the program awaits them.
        """
        make = partial(
            JavaScript,
            source,
            execute=execute,
            language=language,
            globals=globals,
            imports=imports,
            modules=modules,
            memory_limit=memory_limit,
            filename=filename,
        )
        return self._begin(make, timeout, report)

    def run_python(
        self,
        source: str,
        *,
        globals: Mapping[str, Any] = {},
        timeout: float | None = None,
        memory_limit: float = PYTHON_MEMORY,
        filename: str = "<runPython>",
        report: Report | None = None,
    ) -> CodeRun:
        """Run a program in a subset of Python, as `run_code` runs one in TypeScript.

        The result's value is the value of the last expression. `globals` are values and functions; the program awaits
        the functions.
        """
        make = partial(Python, source, globals=globals, memory_limit=memory_limit, filename=filename)
        return self._begin(make, timeout, report)

    def _begin(self, make: Callable[[], Program], timeout: float | None, report: Report | None) -> CodeRun:
        actor: ProgramActor = self._actor
        actor.state.check_open()
        run = CodeRun(make, actor.use_service(CodeHost), timeout=timeout, report=report)
        programs = _PROGRAMS.of(actor)
        programs.add(run)

        def end(*_: object) -> None:
            programs.discard(run)
            run.terminate("the thread has stopped")

        # The turn belongs to the thread, which waits for the turn and may cancel it. The program runs for the caller.
        actor.begin("program", run.finish, end)
        return run
