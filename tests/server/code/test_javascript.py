"""Programs in JavaScript: what they are given, and what comes of them."""

import asyncio
import sys
from typing import Any

import pytest
from tests.cases import each_case

from plait import Reject
from plait.code.code_run import CodeHost, CodeLog, CodeResult, CodeRun
from plait.code.javascript import JavaScript


def begin(source: str, *, timeout: float | None = 60, report: Any = None, **options: Any) -> CodeRun:
    return CodeRun(lambda: JavaScript(source, **options), CodeHost(), timeout=timeout, report=report)


async def run(source: str, **options: Any) -> CodeResult:
    return await begin(source, **options)


async def add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


async def test_the_default_export_is_the_value() -> None:
    assert await run("export default 1+1") == CodeResult("success", 2)


async def test_execute_calls_an_export_with_arguments() -> None:
    source = "export async function main(a: number, b: number): Promise<number> { return a * b }"
    assert await run(source, execute={"fn": "main", "args": [2, 3]}) == CodeResult("success", 6)


async def test_an_import_is_called_and_what_it_returns_reaches_the_caller() -> None:
    given: list[Any] = []

    def note(*args: Any) -> dict[str, Any]:
        given.extend(args)
        return {"noted": len(args)}

    source = """
        import { add, note, limit, "not an identifier" as other } from "shop";
        export default [await note("a", { b: [1] }), await Promise.all([add(1, 2), add(3, 4)]), limit, other];
    """
    shop = {"add": add, "note": note, "limit": [7], "not an identifier": 8}
    assert await run(source, imports={"shop": shop}) == CodeResult("success", [{"noted": 2}, [3, 7], [7], 8])
    assert given == ["a", {"b": [1]}]


async def test_a_global_is_a_free_identifier_and_what_is_not_given_is_undefined() -> None:
    source = "export default [limit, await add(1, 2), typeof other]"
    assert await run(source, globals={"limit": 7, "add": add}) == CodeResult("success", [7, 3, "undefined"])


async def test_what_is_not_of_the_language_is_undefined_unless_it_is_given() -> None:
    source = "export default [typeof fetch, typeof process, typeof require, typeof setTimeout, import.meta.url]"
    assert (await run(source)).value == ["undefined"] * 4 + ["sandbox:<runCode>"]
    assert (await run("export default await fetch('a')", globals={"fetch": str.upper}, filename="a.ts")).value == "A"


async def test_modules_import_each_other_by_relative_names() -> None:
    modules = {"./shapes/round": "export { side } from '../lengths'", "./lengths": "export const side: number = 5"}
    assert await run("import { side } from './shapes/round'; export default side", modules=modules) == CodeResult(
        "success", 5
    )
    assert (await run("export default (await import('./lengths')).side", modules=modules)).value == 5


@each_case("name", ["größe und form.ts", "/srv/agents/main.ts", "agents/main.ts", "a#b?c", "./shapes"])
async def test_a_program_and_its_modules_may_have_any_names(name: str) -> None:
    source = "import { side } from './größe 2'; import { b } from 'größe'; export default () => fail(side + b)"
    source += "; function fail(sum: number) { throw new Error(`${sum}`) }"
    modules = {"./größe 2": "export const side = 5", "./shapes": "throw 1"}
    result = await run(source, filename=name, modules=modules, imports={"größe": {"b": 2}})
    assert result.error is not None
    assert result.error.startswith("Error: 7\n    at fail (")


async def test_typescript_that_is_more_than_types_is_transformed() -> None:
    source = (
        "enum Size { small = 3 } class Box { constructor(public size: Size) {} } export default new Box(Size.small)"
    )
    assert (await run(source + ".size")).value == 3


async def test_logs_and_reports_are_kept_in_order() -> None:
    told: list[Any] = []
    source = "console.log('a', 1, { b: [2] }); console.error(new Error('c').message); report(1); report({ d: 2 });"
    program = begin(source + "export default null", report=told.append)
    assert (await program).logs == (CodeLog("log", 'a 1 {"b":[2]}'), CodeLog("error", "c"))
    assert program.reports == told == [1, {"d": 2}]
    assert not program.running
    assert program.duration > 0


@each_case(
    ("source", "status", "error"),
    [
        ("\n\nfunction f() { throw new TypeError('hi') }\nf()", "error", "TypeError: hi\n    at f (<runCode>:3:22)"),
        ("throw 'hi'", "error", "hi was thrown"),
        ("throw { get stack() { throw 1 }, toString() { throw 2 } }", "error", "an error that cannot be shown"),
        ("export default () => { throw new Error('later') }", "error", "Error: later"),
        ("Promise.reject(new Error('lost')); await new Promise(() => {})", "error", "Error: lost"),
        ("export default new Map()", "error", "SerializationError: JSON has no Map"),
        ("export default [() => 1]", "error", "SerializationError: JSON has no function such as () => 1"),
        ("export default { a: 1n }", "error", "SerializationError: JSON has no bigint such as 1"),
        ("export default NaN", "error", "SerializationError: JSON has no number such as NaN"),
        ("export default 'x'.repeat(2e6)", "error", "SerializationError: 2000045 bytes of JSON are over the limit"),
        ("const a = []; a.push(a); export default a", "error", "TypeError: Converting circular structure to JSON"),
        ("export default '\\ud800'", "error", "what the program has sent cannot be read"),
        ("await fail()", "error", "KeyError"),
        ("await refuse()", "error", "Reject: there is no such thing"),
        ("await unreadable()", "error", "TypeError"),
        ("await add(new Set(), 1)", "error", "SerializationError: JSON has no Set"),
        ("await cancelled()", "error", "RuntimeError"),
        ("await add(1)", "error", "TypeError"),
        ("const x = ;", "link_error", "SyntaxError: SyntaxError: Expression expected"),
        ("import { x } from 'nowhere'; x()", "link_error", 'there is no module "nowhere"'),
        ("import { x } from './nowhere'; x()", "link_error", 'there is no module "./nowhere"'),
        ("import { x } from 'shop'; x()", "link_error", "does not provide an export named 'x'"),
        ("export const main = 1", "link_error", 'the program has no export named "default"'),
    ],
)
async def test_what_fails_is_told_with_its_place(source: str, status: str, error: str) -> None:
    def fail() -> None:
        raise KeyError("a secret")

    def refuse() -> None:
        raise Reject("there is no such thing")

    async def cancelled() -> None:
        raise asyncio.CancelledError

    functions = {"add": add, "fail": fail, "refuse": refuse, "unreadable": object, "cancelled": cancelled}
    result = await run(source, globals=functions, imports={"shop": {"a": 1}})
    assert (result.status, result.value) == (status, None)
    assert result.error is not None
    assert error in result.error
    assert "runner.js" not in result.error
    assert "secret" not in result.error


async def test_a_program_can_catch_what_a_function_raises() -> None:
    def fail() -> None:
        raise Reject("no")

    source = "try { await fail() } catch (error) { globalThis.told = [error.name, error.message] } export default told"
    assert (await run(source, globals={"fail": fail})).value == ["Reject", "no"]


async def test_a_call_that_the_program_does_not_await_is_finished() -> None:
    done = asyncio.Event()

    async def save() -> None:
        await asyncio.sleep(0.01)
        done.set()

    assert (await run("save(); export default 1", globals={"save": save})).value == 1
    assert done.is_set()


@each_case(
    ("options", "error"),
    [
        ({"language": "cobol"}, "Invalid enum value 'cobol' - at `$.language`"),
        ({"memory_limit": 0}, "Expected `float` > 0.0 - at `$.memory_limit`"),
        ({"memory_limit": float("inf")}, "Expected `float` <= 1099511627776.0 - at `$.memory_limit`"),
        ({"memory_limit": 1e30}, "Expected `float` <= 1099511627776.0 - at `$.memory_limit`"),
        ({"imports": {"./a": {}}}, "Expected `str` matching regex '^[^./:][^:]*$' - at `key` in `$.imports`"),
        (
            {"imports": {"node:fs": {}}},
            "Expected `str` matching regex '^[^./:][^:]*$' - at `key` in `$.imports`",
        ),
        ({"imports": {"a": 5}}, "Expected `object`, got `int` - at `$.imports[...]`"),
        ({"modules": {"a": ""}}, "Expected `str` matching regex '^[.]/' - at `key` in `$.modules`"),
        ({"filename": 5}, "Expected `str`, got `int` - at `$.filename`"),
        ({"globals": None}, "Expected `object`, got `null` - at `$.globals`"),
        ({"execute": {"function": "main"}}, "Object contains unknown field `function` - at `$.execute`"),
        ({"execute": {"args": 5}}, "Expected `array`, got `int` - at `$.execute.args`"),
        ({"globals": {"a": object()}}, "Encoding objects of type object is unsupported, at /globals/a/value"),
        ({"timeout": "5"}, "'>' not supported between instances of 'str' and 'int'"),
        ({"timeout": 0}, "timeout must be above 0, or None, not 0"),
    ],
)
async def test_options_that_are_not_valid_are_a_link_error(options: dict[str, Any], error: str) -> None:
    result = await run("globalThis.x()", globals=options.pop("globals", {}), **options)
    assert result == CodeResult("link_error", error=f"InvalidCodeExecutionOptions: {error}")


async def test_without_deno_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deno", None)
    result = await run("export default 1")
    assert result == CodeResult(
        "link_error", error="run_code needs Deno, of the extra plait[code]: pip install 'plait[code]'"
    )
