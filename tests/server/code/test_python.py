"""Programs in Python: what they are given, their outcome and their limits."""

import asyncio
import sys
from typing import Any

import pytest
from tests.cases import each_case

from plait import Reject
from plait.code.code_run import CodeHost, CodeLog, CodeResult, CodeRun
from plait.code.python import Python


def begin(source: str, *, timeout: float | None = 60, report: Any = None, **options: Any) -> CodeRun:
    return CodeRun(lambda: Python(source, **options), CodeHost(), timeout=timeout, report=report)


async def run(source: str, **options: Any) -> CodeResult:
    return await begin(source, **options)


async def add(a: int, b: int = 1) -> int:
    await asyncio.sleep(0)
    return a + b


async def test_the_last_expression_is_the_value() -> None:
    source = """
import asyncio
print("begun", limit)
sums = await asyncio.gather(add(1, b=2), add(3))
report({"sums": sums})
(limit, *sums)
"""
    told: list[Any] = []
    program = begin(source, globals={"add": add, "limit": 7}, report=told.append)
    assert await program == CodeResult("success", [7, 3, 4], logs=(CodeLog("log", "begun 7\n"),))
    assert program.reports == told == [{"sums": [3, 4]}]


@each_case(
    ("source", "status", "error"),
    [
        ("x = (", "link_error", "SyntaxError: unexpected EOF"),
        ("\n1 / 0", "error", 'File "<runPython>", line 2'),
        ("await fail()", "error", "RuntimeError: KeyError"),
        ("await cancelled()", "error", "RuntimeError: RuntimeError"),
        ("await refuse()", "error", "RuntimeError: Reject: there is no such thing"),
        ("'x' * 2_000_000", "error", "SerializationError: 2000002 bytes are over the limit"),
        ("a = []\nwhile True: a.append('x' * 100_000 + str(len(a)))", "memory", "the program needed more than"),
        ("10 ** (10 ** 8)", "memory", "the program needed more than"),
        ("def f(n): return f(n + 1)\nf(0)", "error", "RecursionError"),
        ("while True: print('x' * 100)", "error", "logged and reported more than"),
        ("while True:\n    try: report(1)\n    except Exception: pass", "error", "logged and reported more than"),
        ("open('/etc/passwd').read()", "error", "PermissionError"),
        ("import os\nos.environ['PATH']", "error", "Error"),
        ("import socket", "error", "ModuleNotFoundError"),
        ("import subprocess", "error", "ModuleNotFoundError"),
        ("add.__globals__", "error", "AttributeError"),
        ("().__class__.__base__.__subclasses__()", "error", "Error"),
        ("def f():\n    yield 1\nlist(f())", "error", "NotImplementedError"),
    ],
)
async def test_what_fails_is_told_with_its_place(source: str, status: str, error: str) -> None:
    def fail() -> None:
        raise KeyError("a secret")

    def refuse() -> None:
        raise Reject("there is no such thing")

    async def cancelled() -> None:
        raise asyncio.CancelledError("a secret")

    result = await run(source, globals={"add": add, "fail": fail, "refuse": refuse, "cancelled": cancelled})
    assert result.status == status
    assert result.error is not None
    assert error in result.error
    assert "secret" not in result.error


@each_case("source", ["while True: pass", "await never()", "import time\nwhile True: time.sleep(5)"])
async def test_a_program_is_terminated_in_each_phase(source: str) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def never() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    result = await run(source, globals={"never": never}, timeout=0.3)
    assert (result.status, result.error) == ("terminated", "the program took longer than 0.3 s")
    assert cancelled.is_set() == begun.is_set() == ("never" in source)
    program = begin(source, globals={"never": never})
    program.terminate("enough")
    assert (await program).error == "enough"


async def test_options_that_are_not_valid_are_a_link_error() -> None:
    for options in ({"memory_limit": -1}, {"globals": {"a": object()}}, {"globals": None}, {"filename": 5}):
        result = await run("1", **options)
        assert result.status == "link_error"
        assert str(result.error).startswith("InvalidCodeExecutionOptions: ")


async def test_without_monty_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    what = "run_python needs Monty, of the extra plait[code]: pip install 'plait[code]'"
    assert await run("1") == CodeResult("link_error", error=what)
