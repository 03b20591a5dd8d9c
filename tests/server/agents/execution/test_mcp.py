"""Tools of MCP servers: the reference implementation, over stdio as a process and over HTTP, lends them to a model."""

import asyncio
import logging
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
import uvloop
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from tests.cases import each_case
from tests.running import running
from tests.server.agents.execution import reference_mcp, small_mcp
from tests.server.agents.execution.lab import Lab, Script, call, make_prompt
from tests.server.agents.execution.reference_mcp import DOT, make_server
from tests.server.parts.workshop import until

from plait import (
    Agent,
    Env,
    Files,
    Mcp,
    Messages,
    Plait,
    Principal,
    Prompt,
    PromptTool,
    Side,
    Tasks,
    Thread,
    Values,
    rpc,
    tool,
)
from plait.agents.execution import mcp_servers, mcp_transports
from plait.agents.execution.mcp_servers import McpServers
from plait.agents.execution.registry import Execution

COMMAND = [sys.executable, str(Path(reference_mcp.__file__))]
SMALL = [sys.executable, str(Path(small_mcp.__file__))]
SECRET = "open-sesame"


class Shop(Thread[dict[str, Any]]):
    initial_state = {}  # noqa: RUF012
    idle_timeout = 0.05
    env = Env()
    files = Files()
    values = Values()
    tasks = Tasks()
    messages = Messages(agent="desk")

    @rpc
    async def invoke(self, name: str, args: dict[str, Any]) -> Any:
        return await self.agents.invoke_tool(name, args)

    @rpc
    async def queue(self, name: str, args: dict[str, Any]) -> None:
        await self.agents.queue_tool(name, args)


@asynccontextmanager
async def open_shop(
    folder: Path, script: Script, *tools: Any, env: dict[str, str] | None = None, cls: type[Thread[Any]] = Shop
) -> AsyncIterator[Lab]:
    app = Plait(cls, store=f"sqlite:///{folder / 'plait.db'}", secret="x" * 32, env=env, shutdown_timeout=0.1)
    app.execution(
        cls, agents=[Agent("desk", Side("clerk"))], prompts=[make_prompt("clerk", *tools)], models=[script.model]
    )
    async with app:
        yield Lab(app, cls)


async def run(lab: Lab, *statuses: str) -> list[str]:
    """Have the model answer, and return the results of its calls."""
    await lab.ask("Go.")
    await lab.rest(*statuses)
    return await find_results(lab)


async def find_results(lab: Lab) -> list[str]:
    return [each.content or "" for each in await lab.history() if each.role == "tool"]


@asynccontextmanager
async def reference(**options: Any) -> AsyncIterator[str]:
    """Serve the reference server over HTTP; yields its URL."""
    async with running(make_server(**options).streamable_http_app()) as address:
        yield f"http://{address}/mcp"


# What a model sees and gets


@asynccontextmanager
async def open_server(way: str) -> AsyncIterator[Mcp]:
    """The reference server, over stdio or HTTP."""
    if way == "stdio":
        yield Mcp(COMMAND, name="ref")
    else:
        async with reference() as url:
            yield Mcp(url, name="ref")


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_a_model_calls_the_tools_of_a_server(tmp_path: Path, way: str) -> None:
    script = Script(
        call("ref_add", a=1, b=2),
        call("ref_add", a="one"),
        call("ref_draw"),
        call("ref_sub_tract", a=5, b=2),
        call("ref_of_somebody_else"),
        "Done.",
    )
    async with open_server(way) as mcp, open_shop(tmp_path, script, mcp) as lab:
        added, refused, drawn, subtracted, missing = await run(lab)
        assert (added, drawn, subtracted) == ("3", "A dot.", "3")
        assert "validation error" in refused
        assert missing == "Failed to execute tool: there is no tool 'ref_of_somebody_else'"
        (attachment,) = [path["path"] for each in await lab.history() for path in each.attachments]
        assert attachment.startswith("attachments/")
        assert attachment.endswith(".png")
        assert await lab.handle.part(Shop.files).read(attachment) == DOT
    add = script.tools[0][0]
    assert (add.name, add.description) == ("ref_add", "Add two numbers.")
    assert add.parameters_json_schema["required"] == ["a", "b"]


async def test_files_are_left_out_if_the_thread_keeps_none(tmp_path: Path) -> None:
    class Bare(Thread[None]):
        tasks = Tasks()
        messages = Messages(agent="desk")

    async with reference() as url:
        script = Script(call("ref_draw"), "Done.")
        async with open_shop(tmp_path, script, Mcp(url, name="ref"), cls=Bare) as lab:
            assert await run(lab) == ["A dot.\n\n[1 files could not be kept.]"]


async def test_a_list_that_changes_is_seen_at_the_next_step(tmp_path: Path) -> None:
    script = Script(call("ref_grow"), call("ref_grown", a=1, b=2), "Done.")
    async with reference() as url, open_shop(tmp_path, script, Mcp(url, name="ref")) as lab:
        assert await run(lab) == ["It has grown.", "3"]
    names = [[each.name for each in tools] for tools in script.tools]
    assert ["ref_grown" in each for each in names] == [False, True, True]


async def test_code_queues_and_invokes_the_tools_of_a_server(tmp_path: Path) -> None:
    async with reference() as url, open_shop(tmp_path, Script("Done."), Mcp(url, name="ref")) as lab:
        result = await lab.handle.call("invoke", "ref_add", {"a": 1, "b": 2})
        assert (result["text"], result["is_error"]) == ("3", False)
        assert (await lab.handle.call("invoke", "ref_nothing", {}))["is_error"]
        await lab.handle.call("queue", "ref_add", {"a": 2, "b": 2})
        await lab.rest()
        assert await find_results(lab) == ["4"]


@pytest.mark.parametrize(
    ("needs_approval", "told"),
    [
        (False, "ref_add: 3"),
        (True, "ref_add: Failed to execute tool: it needs approval, for which only a run can wait"),
    ],
)
async def test_an_invoked_prompt_calls_the_tools_of_a_server_that_need_no_approval(
    tmp_path: Path, told: str, *, needs_approval: bool
) -> None:
    script = Script(call("ref_add", a=1, b=2))
    async with reference() as url:
        mcp = Mcp(url, name="ref", needs_approval=needs_approval)
        async with open_shop(tmp_path, script, mcp, PromptTool("clerk")) as lab:
            assert (await lab.handle.call("invoke", "clerk", {"message": "Add."}))["text"] == told
            assert await lab.history() == []


async def test_only_the_tools_that_are_named_are_lent(tmp_path: Path) -> None:
    script = Script(call("ref_draw"), "Done.")
    async with reference() as url, open_shop(tmp_path, script, Mcp(url, name="ref", tools=["add"])) as lab:
        assert await run(lab) == ["Failed to execute tool: there is no tool 'ref_draw'; did you mean 'ref_add'?"]
    assert [each.name for each in script.tools[0]] == ["ref_add"]


async def test_a_name_of_a_tool_that_no_server_has_is_an_error_at_the_first_connect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script("Done.")
    async with reference() as url, open_shop(tmp_path, script, Mcp(url, name="ref", tools=["add", "drawing"])) as lab:
        await run(lab)
    (connect,) = script.tools[0]
    told = "no tools with these names: 'drawing'; did you mean 'draw'?"
    assert connect.name == "ref_connect"
    assert told in str(connect.description)
    assert [each.levelname for each in caplog.records if "'drawing'; did you mean 'draw'?" in each.message] == ["ERROR"]


@asynccontextmanager
async def odd(way: str, how: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Mcp]:
    """A server that describes some of its tools badly, over stdio or HTTP."""
    if way == "stdio":
        yield Mcp([*SMALL, how], name="odd")
    else:
        monkeypatch.setattr(sys, "argv", [how])
        async with running(small_mcp.answer_http) as address:
            yield Mcp(f"http://{address}/mcp", name="odd")


@pytest.mark.parametrize("way", ["stdio", "http"])
async def test_a_tool_that_is_described_badly_is_left_out_alone(
    tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(call("odd_pid"), "Done.")
    async with odd(way, "odd", monkeypatch) as mcp, open_shop(tmp_path, script, mcp) as lab:
        assert (await run(lab))[0].isdigit()
        names = [each.name for each in script.tools[0]]
        assert (len(names), len({*names})) == (12, 12)
        assert {"odd_draw", "odd_pi_d"} < {*names}
        assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", each) for each in names)
        long = [each for each in names if each.startswith(("odd_long", "odd_pi_d"))]
        told = [(await lab.handle.call("invoke", name, {}))["text"] for name in long]
        assert told == [f"It is {name}." for name in (*small_mcp.LONG, "pi.d", "pi/d")]
    left_out = [each.getMessage() for each in caplog.records if "is left out" in each.getMessage()]
    assert [*dict.fromkeys(each.partition(" of the MCP server odd is left out: ")[0] for each in left_out)] == [
        f"the tool {name}" for name in ("without a schema", "text", "list", "7", "without a name")
    ]
    assert all(each.partition("left out: ")[2] for each in left_out)


@pytest.mark.parametrize("way", ["stdio", "http"])
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("large", "a message of the server has more than 4194304 bytes"),
        ("many", "a page of the server has more than 2000 tools"),
    ],
)
async def test_a_page_that_is_too_large_says_so(
    tmp_path: Path, way: str, how: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script("Done.")
    async with odd(way, how, monkeypatch) as mcp, open_shop(tmp_path, script, mcp) as lab:
        await run(lab)
    (connect,) = script.tools[0]
    assert why in str(connect.description)


async def test_a_secret_at_the_end_of_what_is_kept_is_not_shown_in_part(tmp_path: Path) -> None:
    script = Script(*(call("ref_echo", before=99_990 + at) for at in (0, 5, 10, 15)), "Done.")
    server = make_server()

    @server.tool()
    async def echo(before: int) -> str:
        return "x" * before + SECRET + "y" * 100_000

    async with running(server.streamable_http_app()) as address:
        mcp = Mcp(f"http://{address}/mcp", name="ref")
        async with open_shop(tmp_path, script, mcp, env={"KEY": SECRET}) as lab:
            results = await run(lab)
    shown = [each.partition("\n")[0].lstrip("x") for each in results]
    assert shown == ["***", "***", "", ""]
    assert all("has 200" in each for each in results)


class Stock(Thread[dict[str, Any]]):
    initial_state = {"pen": 7}  # noqa: RUF012

    @rpc
    def count(self, item: str) -> int:
        """Count an item."""
        return int(self.state[item])


async def test_an_agent_uses_the_rpcs_of_a_thread_of_another_app(tmp_path: Path) -> None:
    def authenticate(request: Request) -> Principal | None:
        return Principal("desk") if request.headers.get("authorization") == f"Bearer {SECRET}" else None

    other = Plait(Stock, store="memory://", authenticate=authenticate)
    script = Script(call("stock_count", item="pen"), "Done.")
    async with running(other) as address:
        url = f"http://{address}/threads/stock/one/mcp"
        mcp = Mcp(url, name="stock", headers={"Authorization": "Bearer {KEY}"})
        for key, told in ((SECRET, "7"), ("wrong", "Failed to execute tool: the tools of stock are away: ")):
            (tmp_path / key).mkdir()
            async with open_shop(tmp_path / key, script, mcp, env={"KEY": key}) as lab:
                (result,) = await run(lab)
                assert result.startswith(told)
            script = Script(call("stock_count", item="pen"), "Done.")


@pytest.mark.parametrize(
    ("is_approved", "told"), [(True, "3"), (False, "Failed to execute tool: a person has refused the call")]
)
async def test_a_call_waits_for_a_person(tmp_path: Path, is_approved: bool, told: str) -> None:
    script = Script(call("ref_add", a=1, b=2), "Done.")
    async with reference() as url, open_shop(tmp_path, script, Mcp(url, name="ref", needs_approval=True)) as lab:
        await lab.ask("Go.")

        async def answer() -> bool:
            for each in await lab.handle.messages.open_calls():
                (run,) = await lab.handle.tasks.list()
                sent: bool = await lab.handle.tasks.send(run.id, f"approval:{each['id']}", {"approved": is_approved})
                return sent
            return False

        await until(answer)
        await lab.rest()
        assert await find_results(lab) == [told]


async def test_the_tools_are_listed_once_for_a_step(tmp_path: Path) -> None:
    lists = 0
    app = make_server().streamable_http_app()

    async def count(scope: Any, receive: Any, send: Any) -> None:
        nonlocal lists
        lists += (b"mcp-method", b"tools/list") in scope.get("headers", ())
        await app(scope, receive, send)

    script = Script([("ref_add", {"a": 1, "b": 2})] * 3, "Done.")
    async with running(count) as address, open_shop(tmp_path, script, Mcp(f"http://{address}/mcp", name="ref")) as lab:
        assert lists == 0  # The app has started without the server.
        assert await run(lab) == ["3", "3", "3"]
        assert lists == 2


# Secrets


async def test_secrets_of_env_go_to_the_server_and_nowhere_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    script = Script(call("ref_token"), call("ref_leak"), call("web_token"), "Done.")
    async with reference() as url:
        stdio = Mcp(COMMAND, name="ref", env={"TOKEN": "{KEY}"})
        web = Mcp(url, name="web", headers={"Authorization": "Bearer {KEY}"})
        async with open_shop(tmp_path, script, stdio, web, env={"KEY": SECRET}) as lab:
            results = await run(lab)
            assert results[0] == "*** None"
            assert "***" in results[1]
            assert results[2] == "None Bearer ***"
            assert SECRET not in repr(await lab.history())
    assert SECRET not in repr(script.seen)
    assert SECRET not in caplog.text
    assert not any(SECRET.encode() in each for each in read_all(tmp_path))


def read_all(folder: Path) -> list[bytes]:
    return [each.read_bytes() for each in folder.iterdir()]


async def test_a_variable_that_is_missing_is_named_to_the_model(tmp_path: Path) -> None:
    script = Script(call("ref_connect"), "Done.")
    mcp = Mcp("http://127.0.0.1:1/mcp", name="ref", headers={"Authorization": "{KEY}"})
    async with open_shop(tmp_path, script, mcp) as lab:
        (result,) = await run(lab)
        assert "the variable KEY is not set" in result


async def test_a_class_without_variables_cannot_lend_them() -> None:
    class Plain(Thread[None]):
        tasks = Tasks()
        messages = Messages(agent="desk")

    app = Plait(Plain, store="memory://")
    prompt = make_prompt("clerk", Mcp("http://127.0.0.1:1/mcp", name="ref", headers={"A": "{KEY}"}), model="a:b")
    app.execution(Plain, agents=[Agent("desk", Side("clerk"))], prompts=[prompt])
    with pytest.raises(TypeError, match="Env"):
        await app.__aenter__()


# Trouble


class Gate:
    """A server that is not there before it is opened."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.is_open = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        found = self.app if self.is_open or scope["type"] == "lifespan" else PlainTextResponse("closed", 503)
        await found(scope, receive, send)


async def test_a_server_that_is_away_is_a_tool_that_fails_until_it_is_there(tmp_path: Path) -> None:
    gate = Gate(make_server().streamable_http_app())

    async def open_gate() -> Any:
        gate.is_open = True
        return call("ref_connect")

    script = Script(call("ref_connect"), call("ref_add", a=1, b=2), open_gate, call("ref_add", a=1, b=2), "Done.")
    async with running(gate) as address, open_shop(tmp_path, script, Mcp(f"http://{address}/mcp", name="ref")) as lab:
        results = await run(lab)
    assert results[0].startswith("Failed to execute tool: the tools of ref are away: ")
    assert results[1] == results[0]
    assert results[2].startswith("ref is connected. Its tools: ref_add, ")
    assert results[3] == "3"
    names = [[each.name for each in tools] for tools in script.tools]
    assert names[0] == names[2] == ["ref_connect"]
    assert "ref_add" in names[3]


@pytest.mark.parametrize("server", ["http://127.0.0.1:1/mcp", ["/nowhere/server"], [sys.executable, "-c", "pass"]])
async def test_a_server_that_does_not_start_stops_no_run(tmp_path: Path, server: Any) -> None:
    @tool
    async def count(shop: Shop) -> int:
        """Count."""
        return 7

    script = Script(call("count"), call("ref_connect"), "Done.")
    async with open_shop(tmp_path, script, count, Mcp(server, name="ref")) as lab:
        counted, failed = await run(lab)
        assert counted == "7"
        assert failed.startswith("Failed to execute tool: the tools of ref are away: ")


async def test_a_process_that_ends_or_pours_is_started_again(tmp_path: Path) -> None:
    names = ("ref_pid", "ref_die", "ref_pid", "ref_pour", "ref_pid")
    script = Script([(name, {}) for name in names], "Done.")
    async with open_shop(tmp_path, script, Mcp(SMALL, name="ref")) as lab:
        first, died, second, poured, third = await run(lab)
        assert died == "Failed to execute tool: the process of the server has ended"
        assert poured == "Failed to execute tool: a message of the server has more than 4194304 bytes"
        assert len({first, second, third}) == 3
        for pid in (first, second, third):
            await until_ended(pid)


async def until_ended(pid: str) -> None:
    async def look() -> bool:
        return not psutil.pid_exists(int(pid))

    await until(look)


async def test_the_processes_of_a_server_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_transports, "_processes", asyncio.Semaphore(1))
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        script = Script([("one_connect", {}), ("two_connect", {})], "Done.")
        async with open_shop(tmp_path / str(number), script, Mcp(SMALL, name="one"), Mcp(SMALL, name="two")) as lab:
            results = await run(lab)
            assert [each.startswith("Failed to execute tool: the tools of ") for each in results].count(True) == 1
            assert "too many processes of servers run" in "".join(results)


async def test_requests_of_a_server_without_end_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(call("ref_pid"), call("ref_ping"), "Done.")
    async with open_shop(tmp_path, script, Mcp(SMALL, name="ref", timeout=1)) as lab:
        before = len(asyncio.all_tasks())
        await lab.ask("Go.")
        await until(lambda: len(script.seen) == 2)
        monkeypatch.setattr(mcp_servers, "_SECONDS", 0.1)  # Only the next listing, which is not answered.
        most = 0

        async def look() -> bool:
            nonlocal most
            most = max(most, len(asyncio.all_tasks()) - before)
            return len(script.seen) == 3

        await until(look)
        await lab.rest()
        pid, failed = await find_results(lab)
        assert "Timeout" in failed
        assert most < 100
        await until_ended(pid)


async def test_files_that_cannot_be_kept_are_left_out(tmp_path: Path) -> None:
    script = Script(call("ref_draw"), "Done.")
    async with open_shop(tmp_path, script, Mcp(SMALL, name="ref")) as lab:
        assert await run(lab) == ["Two dots.\n\n[2 files could not be kept.]"]


async def test_lines_that_are_no_messages_are_skipped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = Script(call("ref_babble"), call("ref_pid"), "Done.")
    async with open_shop(tmp_path, script, Mcp(SMALL, name="ref")) as lab:
        first, second = await run(lab)
        assert first == second
    assert "What a day!" not in capfd.readouterr().err


async def test_a_call_that_is_never_answered_ends_in_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = Script(call("ref_hang"), call("ref_add", a=1, b=2), "Done.")
    async with reference() as url, open_shop(tmp_path, script, Mcp(url, name="ref", timeout=0.3)) as lab:
        hung, added = await run(lab)
        assert "Timeout" in hung
        assert added == "3"
    assert [each.message for each in caplog.records if each.exc_info] == []


async def test_results_are_bounded(tmp_path: Path) -> None:
    script = Script(
        call("web_pour", size=200_000), call("web_pour", size=10_000_000), call("web_add", a=1, b=2), "Done."
    )
    async with reference() as url, open_shop(tmp_path, script, Mcp(url, name="web")) as lab:
        cut, refused, added = await run(lab)
    assert len(cut) < 101_000
    assert cut.endswith("[The result has 200000 characters; these are the first 100000.]")
    assert refused.startswith("Failed to execute tool: ")
    assert added == "3"


async def test_the_tools_of_a_server_are_bounded(tmp_path: Path) -> None:
    script = Script(call("ref_tool7", a=1, b=2), "Done.")
    async with reference(many=250) as url, open_shop(tmp_path, script, Mcp(url, name="ref")) as lab:
        assert await run(lab) == ["3"]
    assert [each.name for each in script.tools[0]] == [f"ref_tool{number}" for number in range(200)]


async def test_a_list_that_is_too_long_is_that_of_a_server_that_is_away(tmp_path: Path) -> None:
    script = Script("Done.")
    async with reference(many=100, size=100_000) as url, open_shop(tmp_path, script, Mcp(url, name="ref")) as lab:
        assert await run(lab) == []
    assert [each.name for each in script.tools[0]] == ["ref_connect"]


@pytest.mark.parametrize(("name", "told"), [("note", "it is not known whether"), ("note_again", "noted")])
async def test_a_call_that_was_cut_off_is_made_again_only_if_the_server_allows_it(
    tmp_path: Path, name: str, told: str
) -> None:
    notes = tmp_path / "notes"
    async with reference(notes=notes) as url:
        mcp = Mcp(url, name="ref")
        async with open_shop(tmp_path, Script(call(f"ref_{name}", text="x")), mcp) as lab:
            await lab.ask("Go.")

            async def look() -> bool:
                return notes.exists()

            await until(look)
        async with open_shop(tmp_path, Script("Done."), mcp) as lab:
            await lab.rest()
            assert [told in each.lower() for each in await find_results(lab)] == [True]
    assert notes.read_text() == "x\n" * (1 if name == "note" else 2)


async def test_stopping_a_run_ends_a_process_that_hangs_and_its_children(tmp_path: Path) -> None:
    script = Script([("ref_pid", {}), ("ref_fork", {})], call("ref_hang"))
    async with open_shop(tmp_path, script, Mcp(SMALL, name="ref")) as lab:
        await lab.ask("Go.")

        async def look() -> bool:
            return len(script.seen) == 2

        await until(look)
        await lab.handle.messages.stop()
        await lab.rest("cancelled")
        for pid in (await find_results(lab))[:2]:
            await until_ended(pid)


async def test_the_process_of_a_server_is_started_without_a_fork_of_this_one(tmp_path: Path) -> None:
    # A fork copies the page tables of the whole process; `subprocess` does not fork.
    started: list[list[str]] = []
    sys.addaudithook(lambda event, args: started.append(args[1]) if event == "subprocess.Popen" else None)
    async with open_shop(tmp_path, Script(call("ref_pid"), "Done."), Mcp(SMALL, name="ref")) as lab:
        await lab.ask("Go.")
        await lab.rest()
    assert started.count(SMALL) == 1


@each_case("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
async def test_a_process_that_is_left_by_a_cancelled_scope_ends_without_work(make_loop: Any) -> None:
    pids: list[int] = []

    async def leave() -> float:
        before = time.thread_time()
        with anyio.CancelScope() as scope:
            async with mcp_transports.open_process([*SMALL, "deaf"], {}, mcp_transports.ServerMessages("test")):
                pids.extend(each.pid for each in psutil.Process().children() if "deaf" in read_command(each))
                scope.cancel()
                await anyio.sleep_forever()
        return time.thread_time() - before

    def run() -> float:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            return runner.run(leave())

    assert await asyncio.to_thread(run) < 0.5
    (pid,) = pids
    assert not psutil.pid_exists(pid)


def test_a_process_that_is_given_time_is_killed_if_the_loop_ends_before(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    command = ["sh", "-c", 'cat; echo > "$0"; while true; do sleep 1; done', str(closed)]

    async def leave() -> None:
        async with mcp_transports.open_process(command, {}, mcp_transports.ServerMessages("test")):
            pass

    async def main() -> list[psutil.Process]:
        leaving = asyncio.create_task(leave())
        await until(closed.exists)
        assert not leaving.done()
        return [each for each in psutil.Process().children() if str(closed) in read_command(each)]

    left = asyncio.run(main())  # Its end cancels all tasks.
    assert len(left) == 1
    _, alive = psutil.wait_procs(left, timeout=10)
    for each in alive:
        os.killpg(each.pid, signal.SIGKILL)
    assert not alive


async def test_a_process_that_closes_its_output_still_has_its_time_to_end(tmp_path: Path) -> None:
    command = ["sh", "-c", 'cat; exec >&-; sleep 0.5; echo saved > "$0"', str(tmp_path / "saved")]
    async with mcp_transports.open_process(command, {}, mcp_transports.ServerMessages("test")):
        pass
    assert (tmp_path / "saved").read_text() == "saved\n"


async def test_sessions_end_even_if_the_wait_for_that_is_cancelled() -> None:
    thread: Any = Shop()
    mcps = {name: Mcp(SMALL, name=name) for name in ("one", "two")}
    servers, begun = McpServers(thread), asyncio.Event()

    async def use() -> None:
        async with servers:
            await servers.describe(mcps)
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    await begun.wait()
    pids = [str(each.pid) for each in psutil.Process().children() if "small_mcp" in str(each.cmdline())]
    assert len(pids) == 2
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    for pid in pids:
        await until_ended(pid)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_no_process_is_left_if_servers_are_cancelled_while_they_connect() -> None:
    thread: Any = Shop()
    mcps = {name: Mcp([*SMALL, "deaf"], name=name) for name in ("one", "two")}
    servers = McpServers(thread)

    async def use() -> None:
        async with servers:
            await servers.describe(mcps)

    def find() -> list[psutil.Process]:
        return [each for each in psutil.Process().children() if "deaf" in read_command(each)]

    task = asyncio.create_task(use())
    await until(lambda: len(find()) == 2)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    sessions = [each for each in asyncio.all_tasks() if each.get_name().startswith("plait MCP")]
    await asyncio.sleep(0)
    for each in sessions:  # As a loop that is closed does.
        each.cancel()
    await until(lambda: not find())
    with pytest.raises(asyncio.CancelledError):
        await task


def read_command(process: psutil.Process) -> list[str]:
    with suppress(psutil.NoSuchProcess):  # Also a zombie.
        return process.cmdline()
    return []


# Definitions


@each_case(
    ("options", "error"),
    [
        ({"server": "github.com"}, "must be a URL"),
        ({"name": "a b"}, "cannot be the name of a tool"),
        ({"env": {"A": "b"}}, "env is for a command"),
        ({"server": ["x"], "headers": {"A": "b"}}, "headers are for a URL"),
        ({"server": []}, "must be a URL"),
        ({"name": "a" * 60}, "cannot be the name of a tool"),
        ({"timeout": 0}, "timeout of the Mcp 'ref' must be above 0"),
        ({"timeout": float("inf")}, "timeout of the Mcp 'ref' must be above 0"),
    ],
)
def test_a_server_that_cannot_be_used_is_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Mcp(**{"server": "http://127.0.0.1:1/mcp", "name": "ref", **options})


def test_no_other_tool_may_have_a_name_that_a_server_may_give() -> None:
    @tool
    def ref_add(thread: Shop) -> None:
        """Add."""

    url = "http://127.0.0.1:1/mcp"
    for tools in (
        [Mcp(url, name="ref"), ref_add],
        [Mcp(url, name="ref"), Mcp(url, name="ref_b")],
        [Mcp(url, name="subagent")],
    ):
        with pytest.raises(ValueError, match="may be the name of a tool of the Mcp"):
            Execution(Shop, agents=[], prompts=[Prompt("clerk", "Hi.", "a:b", tools)])
    with pytest.raises(ValueError, match="two tools named 'ref'"):
        Prompt("clerk", "Hi.", "a:b", [Mcp(url, name="ref"), Mcp(url, name="ref")])


def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'plait\[mcp\]'"):
        Mcp("http://127.0.0.1:1/mcp", name="ref")
