"""Programs that want too much: each is ended within its bounds."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.cases import each_case
from tests.schedules import in_soak
from tests.server.holding import MOST_HELD, measure_held
from tests.server.parts.workshop import until

from plait.code.code_run import MOST_OUTPUT, CodeHost, CodeRun
from plait.code.javascript import JavaScript


async def never() -> None:
    await asyncio.Event().wait()


def begin(source: str, *, host: CodeHost | None = None, timeout: float = 60, **options: Any) -> CodeRun:
    functions = {"never": never, "now": lambda: 1, "big": lambda: "x" * 5_000_000}
    return CodeRun(lambda: JavaScript(source, globals=functions, **options), host or CodeHost(), timeout=timeout)


@each_case(
    ("source", "status", "error"),
    [
        (
            "const a = []; for (let i = 0; i < 60; i++) a.push(new Uint8Array(1e7).fill(1)); export default a.length",
            "memory",
            "Array buffer allocation failed",
        ),
        ("const a = []; for (;;) a.push(new Array(1e5).fill(1))", "memory", "the program needed more than"),
        ("let a = 'x'; for (;;) a += a + a.slice(1)", "memory", "the program needed more than"),
        ("for (let i = 0; i < 1e5; i++) console.log('x'.repeat(100))", "error", "logged and reported more than"),
        ("console.log('x'.repeat(1e7))", "error", "over the limit of 1048576"),
        ("for (;;) report(1)", "error", "logged and reported more than"),
        ("let a = []; for (let i = 0; i < 1e5; i++) a = [a]; export default a", "error", "Maximum call stack size"),
        ("let a = []; for (let i = 0; i < 1500; i++) a = [a]; export default a", "error", "cannot be read"),
        ("export default Array.from({ length: 3e5 }, () => [])", "error", "has a weight of"),
        ("(function f() { f() })()", "error", "Maximum call stack size exceeded"),
    ],
)
async def test_what_is_too_much_is_told(source: str, status: str, error: str) -> None:
    result = await begin(source, memory_limit=64 * 1024 * 1024)
    assert result.status == status
    assert result.error is not None
    assert error in result.error
    assert sum(len(each.text) for each in result.logs) <= MOST_OUTPUT


@each_case("source", ["for (;;) never()", "for (;;) await now()", "await never()"])
async def test_calls_without_end_are_ended_with_the_program(source: str) -> None:
    run = begin(source, timeout=0.5)
    result = await run
    assert (result.status, result.error) == ("terminated", "the program took longer than 0.5 s")


async def test_a_function_may_return_more_than_a_program_may_send() -> None:
    assert (await begin("export default (await big()).length")).value == 5_000_000


async def test_a_process_that_dies_is_told() -> None:
    run = begin("await never()")
    program = JavaScript("export default 1")
    assert program._explain(7).error == "the process of the program has ended with the code 7"
    assert program._explain(-24).status == "terminated"
    run.terminate()
    await run


async def test_a_ninth_program_waits_until_another_one_has_ended() -> None:
    host = CodeHost()
    eight = [begin("await never()", host=host) for _ in range(8)]
    ninth = begin("export default 9", host=host)
    await until(lambda: all(each.duration for each in eight))
    assert ninth.running
    assert ninth.duration == 0
    eight[0].terminate()
    assert (await ninth).value == 9
    for each in eight:
        each.terminate()
    assert {(await each).status for each in eight} == {"terminated"}


@pytest.mark.parametrize(
    "source",
    [
        "for (;;) console.log('')",
        "export default Array.from({ length: 2e5 }, () => [])",
        *in_soak(
            ["for (;;) now()"],
            ["export default Array.from({ length: 3.2e4 }, () => [])"],
            ["export default 'x'.repeat(1e6)"],
        ),
    ],
)
async def test_eight_programs_never_hold_the_loop_for_long(source: str) -> None:
    async def run_eight() -> None:
        host = CodeHost()
        for run in [begin(source, host=host, timeout=0.5) for _ in range(8)]:
            await run

    assert await measure_held(run_eight) < MOST_HELD


async def test_a_process_has_the_lowest_priority_and_its_limits() -> None:
    begun = asyncio.Event()
    run = CodeRun(
        lambda: JavaScript("await begin(); await never()", globals={"begin": begun.set, "never": never}), CodeHost()
    )
    await begun.wait()
    # Other tests have children, too.
    children = _read(f"{os.getpid()}/task/{os.getpid()}/children").split()
    (child,) = (each for each in children if "runner.js" in _read(f"{each}/cmdline"))
    limits = {line[:24].strip(): line[24:].split()[0] for line in _read(f"{child}/limits").splitlines()}
    assert limits["Max cpu time"] == "60"
    assert limits["Max data size"] == str(192 * 1024 * 1024)
    assert limits["Max file size"] == limits["Max core file size"] == "0"
    assert limits["Max open files"] == "0"
    assert limits["Max stack size"] == str(8 * 1024 * 1024)
    assert _read(f"{child}/stat").rpartition(")")[2].split()[16] == "19"
    assert {each.partition("=")[0] for each in _read(f"{child}/environ").split("\0")} <= {
        "",
        "DENO_DIR",
        "DENO_NO_UPDATE_CHECK",
        "NO_COLOR",
        "LC_CTYPE",
    }
    run.terminate()
    await run


def _read(path: str) -> str:
    return Path("/proc", path).read_text()
