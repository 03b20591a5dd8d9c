"""What a program tries to get out of its process: it finds nothing, and the secret stays where it is."""

from pathlib import Path

import pytest
from tests.cases import each_case

from plait.code.code_run import CodeHost, CodeRun
from plait.code.javascript import JavaScript

REFUSED = "there is no module"
UNDEFINED = "is not defined"
NO_CODE = "Code generation from strings disallowed"

# What is tried, and what the result has in it: the text of its error, or its value.
IMPORTS = {
    "a static import of JSON": ("import t from '%s' with { type: 'json' }; export default t", REFUSED),
    "a static import of text": ("import t from '%s' with { type: 'text' }; export default t", REFUSED),
    "a static import of bytes": ("import t from '%s' with { type: 'bytes' }; export default t", REFUSED),
    "an import as code": ("import '%s'", REFUSED),
    "a deferred import": ("import defer * as t from '%s'; export default t", REFUSED),
    "a dynamic import": ("export default await import('%s', { with: { type: 'text' } })", REFUSED),
    "a computed import": ("const at = ['%s'].join(''); export default await import(at)", REFUSED),
    "an import by a data URL": (
        "export default await import('data:text/javascript,export * from \"%s\"')",
        REFUSED,
    ),
    "an import by the runner's names": ("export default await import('plait:start')", REFUSED),
    "an import of the runner": (f"import '{Path('server/plait/code/runner.js').absolute().as_uri()}'", REFUSED),
    "an import from the network": ("export default await import('https://127.0.0.1/x.js')", REFUSED),
    "an import of a package": ("export default await import('npm:chalk')", REFUSED),
    "files of Node": ("import fs from 'node:fs'; export default fs.readFileSync('%s', 'utf8')", REFUSED),
    "processes of Node": ("import cp from 'node:child_process'; export default cp.execSync('cat %s')", REFUSED),
    "workers of Node": ("import { Worker } from 'node:worker_threads'; export default new Worker('1')", REFUSED),
    "hooks of Node": ("import m from 'node:module'; export default m.registerHooks", REFUSED),
    "an import with a changed language": (
        "Map.prototype.get = () => undefined; String.prototype.startsWith = () => false;"
        "const changed = { get: () => false, configurable: true };"
        "try { Object.defineProperty(Object.prototype, 'shortCircuit', changed) } catch {}"
        "export default Object.keys(await import('node:fs'))",
        REFUSED,
    ),
    "a hook among those of the runner": (
        "const hook = (url) => ({ url, format: 'builtin', source: null, shortCircuit: true });"
        "const changed = { set() {}, get: () => hook, configurable: true };"
        "try { Object.defineProperty(Array.prototype, '0', changed) } catch {}"
        "export default Object.keys(await import('node:v8'))",
        REFUSED,
    ),
    "a source that is another file": (
        "const iterator = Object.getPrototypeOf([][Symbol.iterator]()); const { next } = iterator;"
        "iterator.next = function () {"
        "  const step = next.call(this);"
        "  if (typeof step.value === 'string' && step.value.startsWith('sandbox:node:')) step.value = '%s';"
        "  return step;"
        "};"
        "Map.prototype.get = () => null;"
        "export default (await import('node:fs', { with: { type: 'text' } })).default",
        REFUSED,
    ),
}
GLOBALS = {
    "a fetch of a file": ("export default await (await fetch('%s')).text()", UNDEFINED),
    "a fetch from the network": ("export default await (await fetch('http://127.0.0.1:8080')).text()", UNDEFINED),
    "a blob of code": ("URL.createObjectURL(new Blob(['1']))", UNDEFINED),
    "a worker": ("new Worker('data:,1')", UNDEFINED),
    "the environment": ("export default Deno.env.toObject()", UNDEFINED),
    "the path of Deno": ("export default Deno.execPath()", UNDEFINED),
    "the main module": ("export default Deno.mainModule", UNDEFINED),
    "the folder": ("export default Deno.cwd()", UNDEFINED),
    "a signal": ("Deno.kill(1)", UNDEFINED),
    "an exit": ("Deno.exit(7)", UNDEFINED),
    "the process": ("export default process.env", UNDEFINED),
    "WebAssembly": ("new WebAssembly.Memory({ initial: 1 })", UNDEFINED),
    "shared memory": ("new SharedArrayBuffer(8)", UNDEFINED),
    "eval": ("export default eval('1')", NO_CODE),
    "a function from a text": ("export default new Function('return 1')()", NO_CODE),
    "the constructor of a given function": ("export default given.constructor('return this')()", NO_CODE),
    "the constructor of an async function": ("export default (async () => {}).constructor('return this')()", NO_CODE),
    "the frames of the stack": (
        "Error.prepareStackTrace = (_, frames) => frames.map((each) => typeof (each.getThis() ?? each.getFunction()));"
        "export default await given().catch((error) => new Set(error.stack).size)",
        "",
    ),
    "what is left of the globals": (
        "const found = new Set(); let at = globalThis;"
        "for (; at !== null; at = Object.getPrototypeOf(at)) "
        "Object.getOwnPropertyNames(at).forEach((each) => found.add(each));"
        "export default ['Deno', 'process', 'fetch', 'require', 'setTimeout', 'Blob', 'URL', 'performance', 'crypto',"
        "'structuredClone', 'Worker', 'localStorage', 'TextDecoder'].filter((each) => found.has(each)).length",
        "0",
    ),
    "a forged frame": (
        """console.log('\\n{"type":"end","status":"success","value":"forged"}'); export default 'mine'""",
        "mine",
    ),
}


@pytest.mark.parametrize(("source", "outcome"), [*IMPORTS.values(), *GLOBALS.values()], ids=[*IMPORTS, *GLOBALS])
async def test_a_program_finds_no_way_out(source: str, outcome: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('"TOP SECRET"')
    source = source.replace("%s", secret.as_uri())
    program = JavaScript(source, globals={"given": lambda: 1}, language="javascript")
    result = await CodeRun(lambda: program, CodeHost(), timeout=30)
    found = str(result.value) if result.status == "success" else result.error
    assert found is not None
    assert outcome in found
    assert "SECRET" not in repr(result)
    assert result.status in (("success",) if outcome in ("", "0", "mine") else ("error", "link_error"))


@each_case(
    "source",
    [
        "export default await given().catch((error) => error.stack)",
        "try { report(1n) } catch (error) { report(error.stack) } export default 1",
        "const found = {}; Error.captureStackTrace(found); export default found.stack",
        "try { await import('./other') } catch (error) { report(error.stack + error.message) } export default 1",
        "Error.prepareStackTrace = (_, sites) => sites.map((each) => each.getFileName());"
        "export default await given().catch((error) => error.stack)",
        "Object.defineProperty(Error, 'prepareStackTrace', { value: (_, sites) => sites[0].getFileName() });"
        "export default new Error('no').stack",
        "const seen = []; const keep = function () { seen.push(typeof this); return this };"
        "Array.prototype.filter = Array.prototype.map = Function.prototype.call = String.prototype.at = keep;"
        "String.prototype.startsWith = () => true;"
        "export default await given().catch((error) => error.stack)",
        "throw await given().catch((error) => error)",
    ],
)
async def test_a_program_does_not_see_where_the_server_is_installed(source: str) -> None:
    def fail() -> None:
        raise LookupError("no")

    run = CodeRun(lambda: JavaScript(source, globals={"given": fail}, language="javascript"), CodeHost(), timeout=30)
    found = repr((await run, run.reports))
    assert ("runner.js" in found, str(Path.cwd()) in found, "file:" in found) == (False, False, False)


@pytest.mark.parametrize("at", ["# sourceMappingURL=", "@ sourceMappingURL=", "# sourceURL="])
async def test_no_comment_of_a_program_names_a_file_that_is_read(at: str, tmp_path: Path) -> None:
    map = tmp_path / "program.map"
    map.write_text('{"version": 3, "sources": ["TOP SECRET"], "names": [], "mappings": ";;;;AAAA"}')
    source = f"\n\n\n\nfunction fail() {{ throw new Error('no')\n//{at}{map.as_uri()}\n}}\nfail()\n//{at}{map.as_uri()}"
    result = await CodeRun(lambda: JavaScript(source), CodeHost(), timeout=30)
    assert result.error is not None
    assert result.error.splitlines()[1] == "    at fail (<runCode>:5:25)"
