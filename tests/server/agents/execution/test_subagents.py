"""Subagents: children of a thread that answer calls of its model."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.server.agents.execution.lab import Hold, Said, Script, call, make_prompt
from tests.server.parts.workshop import until

from plait import (
    Agent,
    Context,
    Env,
    Family,
    Files,
    Hooks,
    InvalidArguments,
    Message,
    Messages,
    NotFound,
    Plait,
    Prompt,
    Side,
    Step,
    Subagent,
    Tasks,
    Thread,
    ThreadMessages,
    Variable,
    rpc,
    task,
    tool,
)
from plait.agents.execution import asking
from plait.agents.execution.tools import ToolResult
from plait.parts.family.rows import Child


class Boss(Thread[dict[str, Any]]):
    initial_state = {}  # noqa: RUF012
    idle_timeout = 0.05
    tasks = Tasks()
    family = Family()
    files = Files()
    env = Env()
    messages = Messages(agent="boss")

    @rpc
    async def adopt(self, name: str) -> str:
        return await self.family.spawn(Worker, name)

    @rpc
    async def supply(self, run: str, variables: dict[str, str]) -> bool:
        return bool(await self.agents.supply(run, variables))

    @rpc
    def is_stopped(self) -> bool:
        return self.messages.is_stopped

    @rpc
    async def invoke(self, name: str) -> ToolResult:
        result: ToolResult = await self.agents.invoke_tool(name, {"message": "Count."})
        return result

    @rpc
    def look(self) -> list[dict[str, Any]]:
        return [msgspec.to_builtins(each) for each in self.family.children]

    @task
    async def other(self, step: Step, value: Any) -> None:
        """A run of another task, with a value of its author."""
        step.status(value)
        await step.event("never")


class Worker(Thread[dict[str, Any]]):
    initial_state = {}  # noqa: RUF012
    idle_timeout = 0.05
    tasks = Tasks()
    family = Family()
    files = Files()
    env = Env(scoped={"TOKEN"})
    messages = Messages(agent="worker")

    @rpc
    async def notify(self, text: str) -> None:
        await self.family.notify_parent(text)


class Lonely(Thread[dict[str, Any]]):
    initial_state = {}  # noqa: RUF012
    tasks = Tasks()
    messages = Messages(agent="lonely")


@tool
async def finish(worker: Worker, result: str) -> str:
    """End the work."""
    return result


@tool
async def fail(worker: Worker, reason: str) -> str:
    """Give up."""
    return reason


WORKER = Side("worker")


class Team:
    """A parent and its children."""

    def __init__(self, app: Plait) -> None:
        self.app = app
        self.boss: Any = app.thread(Boss, "one")

    async def ask(self, text: str = "Do it.") -> None:
        await self.boss.messages.queue(text)

    async def history(self) -> list[Message]:
        return (await self.boss.messages.list(1000, include_silent=True)).messages

    async def texts(self) -> list[str]:
        return [f"{each.role} {each.content}" for each in await self.history() if each.content]

    async def rest(self, *statuses: str) -> None:
        async def look() -> bool:
            runs = [run.status for run in await self.boss.tasks.list()]
            return runs == [*(statuses or ("done",))] and not await self.boss.messages.pending()

        await until(look)

    async def children(self) -> list[Child]:
        return [msgspec.convert(each, Child) for each in await self.boss.call(Boss.look)]

    async def find(self) -> Any:
        """Return a handle to the only child."""
        (child,) = await self.children()
        return self.app.thread(Worker, child.name)


@asynccontextmanager
async def open_team(
    folder: Path,
    boss: Script,
    worker: Script,
    subagent: Subagent | None = None,
    *,
    side: Side = WORKER,
    other: Side | None = None,
    prompts: Sequence[Prompt] = (),
    hooks: Sequence[Hooks] = (),
    worker_hooks: Sequence[Hooks] = (),
    **options: Any,
) -> AsyncIterator[Team]:
    tool = subagent or Subagent("worker", Worker)
    app = Plait(
        Boss, Worker, store=f"sqlite:///{folder / 'plait.db'}", secret="x" * 32, shutdown_timeout=0.1, **options
    )
    app.execution(
        Boss,
        agents=[Agent("boss", Side("boss"), hooks=hooks)],
        prompts=[make_prompt("boss", tool)],
        models=[boss.model],
    )
    app.execution(
        Worker,
        agents=[Agent("worker", side, other, hooks=worker_hooks)],
        prompts=[make_prompt("worker", finish, fail, model="work"), *prompts],
        models=[worker.model],
    )
    async with app:
        yield Team(app)


def work(*said: Any) -> Script:
    return Script(*said, name="work")


async def test_the_model_sees_the_result_of_a_blocking_subagent_before_its_next_step(tmp_path: Path) -> None:
    boss = Script(call("worker", message="Count."), "It is 3.")
    async with open_team(tmp_path, boss, work("Three.")) as team:
        await team.ask()
        await team.rest()
        assert await team.texts() == ["user Do it.", "tool Three.", "assistant It is 3."]
        assert boss.texts()[-1] == "tool-return Three."
        (child,) = await team.children()
        (result,) = [each for each in await team.history() if each.role == "tool"]
        assert result.subagent_id == child.reference
        assert child.name.startswith(f"{result.tool_call_id}-")
        assert (await (await team.find()).messages.list()).messages[0].content == "Count."


async def test_a_subagent_that_is_not_resumable_is_terminated_after_its_result(tmp_path: Path) -> None:
    async with open_team(tmp_path, Script(call("worker", message="Count."), "Done."), work("Three.")) as team:
        await team.ask()
        await team.rest()

        async def is_terminated() -> bool:
            (child,) = await team.children()
            return child.status == "terminated" and await (await team.find()).terminated_at() is not None

        await until(is_terminated)
        assert await (await team.find()).tasks.list(status="done") != []
        # Its end was told once: by the result.
        assert len([each for each in await team.history() if each.subagent_id is not None]) == 1


async def test_a_call_that_does_not_wait_is_answered_by_a_silent_message_that_wakes_the_parent(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def count() -> Any:
        await go.wait()
        return "Three."

    boss = Script(call("worker", message="Count."), "It works.", "It has counted.")
    subagent = Subagent("worker", Worker, blocking=False)
    async with open_team(tmp_path, boss, work(count), subagent) as team:
        await team.ask()
        await team.rest()
        go.set()

        async def has_answered() -> bool:
            return (await team.texts())[-1] == "assistant It has counted."

        await until(has_answered)
        (notice,) = [each for each in await team.history() if each.silent and each.subagent_id]
        (child,) = await team.children()
        (result,) = [each for each in await team.history() if each.role == "tool"]
        assert result.content == f"The subagent {child.reference} works on it, and reports later."
        assert (notice.role, notice.subagent_id, notice.status) == ("user", child.reference, "completed")
        assert notice.content == f"The subagent {child.reference} reports:\nThree."
        assert result.subagent_id == child.reference
        assert any("reports:\nThree." in text for text in boss.texts())


async def test_a_notice_wakes_the_agent_of_the_parent(tmp_path: Path) -> None:
    boss = Script("I have heard.")
    async with open_team(tmp_path, boss, work("Three."), Subagent("worker", Worker)) as team:
        await team.boss.call(Boss.adopt, "w")
        await team.app.thread(Worker, "w").call(Worker.notify, "halfway")

        async def has_heard() -> bool:
            return await team.texts() == ["user halfway", "assistant I have heard."]

        await until(has_heard)


async def test_a_subagent_with_report_false_tells_its_parent_nothing_by_itself(tmp_path: Path) -> None:
    boss = Script(call("worker", message="Count."), "It works.")
    subagent = Subagent("worker", Worker, blocking=False, report=False)
    async with open_team(tmp_path, boss, work("Three."), subagent) as team:
        await team.ask()
        await team.rest()

        async def is_terminated() -> bool:
            return [each.status for each in await team.children()] == ["terminated"]

        await until(is_terminated)
        assert [each for each in await team.history() if each.silent] == []
        assert (await team.children())[0].parent_communication == "explicit"


def test_a_subagent_that_blocks_must_report() -> None:
    with pytest.raises(ValueError, match="report=False of 'worker' is for a subagent that does not block"):
        Subagent("worker", Worker, report=False)


def find_reference(boss: Script) -> str:
    """Return the reference of the only instance that a model may send a message to."""
    (tool,) = [each for each in boss.tools[-1] if each.name == "subagent_message"]
    (reference,) = tool.parameters_json_schema["properties"]["reference"]["enum"]
    return str(reference)


async def test_a_resumable_subagent_stays_and_answers_further_messages(tmp_path: Path) -> None:
    async def go_on() -> Said:
        return call("subagent_message", reference=find_reference(boss), message="And now?")

    boss = Script(call("subagent_create", agent="worker", name="Ada", message="Count."), go_on, "Done.")
    async with open_team(tmp_path, boss, work("Three.", "Four."), Subagent("worker", Worker, resumable=True)) as team:
        await team.ask()
        await team.rest()
        (child,) = await team.children()
        assert [each.content for each in await team.history() if each.role == "tool"] == [
            f"Three.\n\n(From the subagent {child.reference}.)",
            f"Four.\n\n(From the subagent {child.reference}.)",
        ]
        assert (child.thread_name, child.title, child.status) == ("Ada", "worker", "idle")
        assert (child.resumable, child.blocking, child.parent_communication) == (True, True, "implicit")
        assert await (await team.find()).terminated_at() is None
        names = [tool.name for tool in boss.tools[0]], [tool.name for tool in boss.tools[1]]
        assert names == (["subagent_create"], ["subagent_create", "subagent_message"])


async def test_a_resumable_subagent_cannot_be_called_by_its_own_name(tmp_path: Path) -> None:
    boss = Script(call("worker", message="Count."), "Done.")
    async with open_team(tmp_path, boss, work("Three."), Subagent("worker", Worker, resumable=True)) as team:
        await team.ask()
        await team.rest()
        (error,) = [each.content for each in await team.history() if each.role == "tool"]
        assert error == "Failed to execute tool: worker cannot be called by this name"


async def test_no_more_instances_live_than_a_subagent_may_have(tmp_path: Path) -> None:
    create = call("subagent_create", agent="worker", name="Ada", message="Count.")
    boss = Script(create, create, "Done.")
    subagent = Subagent("worker", Worker, resumable=True, max_instances=1)
    async with open_team(tmp_path, boss, work("Three."), subagent) as team:
        await team.ask()
        await team.rest()
        (child,) = await team.children()
        error = [each.content for each in await team.history() if each.role == "tool"][1]
        assert error == (
            "Failed to execute tool: there are 1 of at most 1 instances of worker: "
            f"{child.reference} (Ada); send one of them a message with subagent_message"
        )


async def test_a_message_to_a_terminated_or_unknown_subagent_is_an_error(tmp_path: Path) -> None:
    boss = Script(
        call("subagent_create", agent="worker", name="Ada", message="Count."),
        "replaced below",
        call("subagent_message", reference="worker/none", message="Hello?"),
        "Done.",
    )
    async with open_team(tmp_path, boss, work("Three."), Subagent("worker", Worker, resumable=True)) as team:

        async def end_child() -> Any:
            await (await team.find()).terminate()

            async def is_known() -> bool:
                return [each.status for each in await team.children()] == ["terminated"]

            await until(is_known)
            return call("subagent_message", reference=(await team.children())[0].reference, message="And now?")

        boss._said = (boss._said[0], end_child, *boss._said[2:])
        await team.ask()
        await team.rest()
        (child,) = await team.children()
        errors = [each.content for each in await team.history() if each.role == "tool"][1:]
        assert errors == [
            f"Failed to execute tool: there is no subagent {name!r}, or it was terminated"
            for name in (child.reference, "worker/none")
        ]


async def test_the_message_for_side_b_has_the_role_of_side_a(tmp_path: Path) -> None:
    boss = Script(call("worker", message="Count."), "Done.")
    worker = Script(call("finish", result="Three."), name="work")
    subagent = Subagent("worker", Worker, receives="b")
    async with open_team(tmp_path, boss, worker, subagent, other=Side("worker", session_stop="finish")) as team:
        await team.ask()
        await team.rest()
        history = (await (await team.find()).messages.list()).messages
        assert (history[0].role, history[0].content) == ("assistant", "Count.")
        assert history[1].metadata["plait"]["execution"]["side"] == "b"
        assert "tool Three." in await team.texts()


@pytest.mark.parametrize(
    ("said", "result", "status"),
    [
        (call("finish", result="Three."), "Three.", "success"),
        (call("fail", reason="I cannot."), "I cannot.", "error"),
        ("I wonder.", "I wonder.", "error"),
    ],
)
async def test_the_tool_that_ends_the_session_says_the_result(
    tmp_path: Path, said: Any, result: str, status: str
) -> None:
    side = Side("worker", session_stop="finish", session_fail="fail")
    async with open_team(tmp_path, Script(call("worker", message="Count."), "Done."), work(said), side=side) as team:
        await team.ask()
        await team.rest()
        (found,) = [each for each in await team.history() if each.role == "tool"]
        assert (found.content, found.metadata["plait"]["tool_status"]) == (result, status)


async def hang() -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize("end", ["terminate", "destroy"])
async def test_a_parent_does_not_wait_for_a_subagent_that_is_gone(tmp_path: Path, end: str) -> None:
    boss = Script(call("worker", message="Count."), "Done.")
    worker = work(hang)
    async with open_team(tmp_path, boss, worker) as team:
        await team.ask()

        async def is_asked() -> bool:
            return bool(worker.seen)

        await until(is_asked)
        await getattr(await team.find(), end)()
        await team.rest()
        (found,) = [each for each in await team.history() if each.role == "tool"]
        assert found.metadata["plait"]["tool_status"] == "error"
        assert found.content == f"The subagent has ended without a result: it was {end.removesuffix('e')}{'ed'}"


async def test_a_parent_is_told_that_the_run_of_its_subagent_has_failed(tmp_path: Path) -> None:
    boss = Script(call("worker", message="Count."), "Done.")
    async with open_team(tmp_path, boss, work(RuntimeError("no power"))) as team:
        await team.ask()
        await team.rest()
        (found,) = [each for each in await team.history() if each.role == "tool"]
        assert found.metadata["plait"]["tool_status"] == "error"
        assert found.content == "Something went wrong, so there is no answer."
        assert [each.status for each in await team.children()] == ["terminated"]


async def test_a_parent_is_told_that_the_run_of_its_subagent_was_cancelled(tmp_path: Path) -> None:
    boss, worker = Script(call("worker", message="Count."), "Done."), work(hang)
    async with open_team(tmp_path, boss, worker) as team:
        await team.ask()

        async def is_asked() -> bool:
            return bool(worker.seen)

        await until(is_asked)
        child = await team.find()
        (run,) = await child.tasks.list()
        await child.tasks.cancel(run.id)
        await team.rest()
        (found,) = [each for each in await team.history() if each.role == "tool"]
        assert (found.content, found.metadata["plait"]["tool_status"]) == ("it was stopped", "error")


@pytest.mark.parametrize("is_inside", [False, True])
async def test_a_parent_does_not_wait_for_a_subagent_that_is_stopped(tmp_path: Path, is_inside: bool) -> None:
    @tool
    async def rest(worker: Worker) -> str:
        """Rest."""
        await worker.messages.stop()
        return "zzz"

    boss = Script(call("subagent_create", agent="worker", name="Ada", message="Count."), "Done.")
    worker = work(call("rest") if is_inside else hang)
    side, prompts = Side("idler"), [make_prompt("idler", rest, model="work")]
    subagent = Subagent("worker", Worker, resumable=True)
    async with open_team(tmp_path, boss, worker, subagent, side=side, prompts=prompts) as team:
        await team.ask()

        async def is_asked() -> bool:
            return bool(worker.seen)

        await until(is_asked)
        if not is_inside:
            await (await team.find()).messages.stop()
        await team.rest()
        (found,) = [each for each in await team.history() if each.role == "tool"]
        assert (found.content or "").startswith("it was stopped")
        assert found.metadata["plait"]["tool_status"] == "error"
        assert [each.status for each in await team.children()] == ["idle"]


async def test_a_child_whose_name_is_taken_is_an_error_for_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "make_call_id", lambda: "first")
    name = f"first-{blake2b(b'boss/one', digest_size=6).hexdigest()}"
    boss = Script(call("worker", message="Count."), "Done.")
    async with open_team(tmp_path, boss, work("Three.")) as team:
        await team.app.thread(Boss, "two").call(Boss.adopt, name)
        await team.ask()
        await team.rest()
        (found,) = [each for each in await team.history() if each.role == "tool"]
        assert found.content == "The subagent has ended without a result: it has another parent, or children"


async def test_attachments_are_readable_at_the_paths_that_the_receiver_is_given(tmp_path: Path) -> None:
    @tool
    async def draw(worker: Worker) -> ToolResult:
        """Draw."""
        (message,) = [each for each in (await worker.messages.list()).messages if each.attachments]
        given = await worker.files.read(message.attachments[0]["path"])
        assert given is not None
        await worker.files.write("out.txt", b"<" + given + b">")
        return ToolResult("Drawn.", ["out.txt"])

    boss = Script(call("worker", message="Draw.", attachments=["in.txt"]), "Done.")
    side, prompts = Side("painter", session_stop="draw"), [make_prompt("painter", draw, model="work")]
    async with open_team(tmp_path, boss, work(call("draw")), side=side, prompts=prompts) as team:
        await team.boss.files.write("in.txt", b"sun")
        await team.ask()
        await team.rest()
        (found,) = [each for each in await team.history() if each.role == "tool"]
        assert found.content == "Drawn."
        (attachment,) = found.attachments
        assert await team.boss.files.read(attachment["path"]) == b"<sun>"


@pytest.mark.parametrize(("flag", "names"), [("", []), ("no", []), ("Yes", ["worker"]), ("1", ["worker"])])
async def test_an_optional_subagent_is_a_tool_if_its_variable_says_so(
    tmp_path: Path, flag: str, names: list[str]
) -> None:
    boss = Script(call("worker", message="Count."), "Done.")
    env = {"WITH_WORKER": flag} if flag else {}
    subagent = Subagent("worker", Worker, optional="WITH_WORKER")
    async with open_team(tmp_path, boss, work("Three."), subagent, env=env) as team:
        await team.ask()
        await team.rest()
        assert [each.name for each in boss.tools[0]] == names
        (found,) = [each.content for each in await team.history() if each.role == "tool"]
        assert found == ("Three." if names else "Failed to execute tool: there is no subagent 'worker'")


async def test_arguments_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    boss = Script(call("worker", message=""), call("worker", text="Count."), "Done.")
    async with open_team(tmp_path, boss, work("Three.")) as team:
        await team.ask()
        await team.rest()
        found = [each.content or "" for each in await team.history() if each.role == "tool"]
        assert [each.split(": ")[1:3] for each in found] == [["worker", "the arguments do not fit"]] * 2
        assert await team.children() == []


async def test_the_class_of_a_subagent_needs_a_family(tmp_path: Path) -> None:
    app = Plait(Boss, Lonely, store="memory://")
    prompts = [make_prompt("boss", Subagent("lonely", Lonely), model="test:test")]
    app.execution(Boss, agents=[Agent("boss", Side("boss"))], prompts=prompts)
    app.execution(Lonely, agents=[Agent("lonely", Side("lonely"))], prompts=[make_prompt("lonely", model="test:test")])
    with pytest.raises(TypeError, match="Lonely has no Family"):
        async with app:
            pass


async def test_the_parent_is_told_of_a_new_child_by_a_handle(tmp_path: Path) -> None:
    told = list[Any]()

    class Telling(Hooks):
        async def after_subagent_created(self, thread: Any, child: Any) -> None:
            told.append((thread.name, child.name, thread.execution.prompt_path))

    boss = Script(call("worker", message="Count."), "It is 3.")
    async with open_team(tmp_path, boss, work("Three."), hooks=[Telling()]) as team:
        await team.ask()
        await team.rest()
        (child,) = await team.children()
    assert told == [("one", child.name, ["boss"])]


async def test_a_child_that_a_hook_stops_before_its_answer_reports_to_its_parent(tmp_path: Path) -> None:
    class Stopping(Hooks):
        def filter_messages(self, thread: Any, messages: Any) -> None:
            thread.execution.stop()

    boss = Script(call("worker", message="Count."), "It has not counted.")
    async with open_team(tmp_path, boss, work("Never."), worker_hooks=[Stopping()]) as team:
        await team.ask()
        await team.rest()
        (found,) = [each for each in await team.history() if each.role == "tool"]
        assert found.content == "The subagent has ended without an answer: it was stopped"
        assert found.metadata["plait"]["tool_status"] == "error"
        assert (await team.texts())[-1] == "assistant It has not counted."


@pytest.mark.parametrize("resumable", [False, True])
async def test_an_immediate_subagent_begins_before_the_model_is_asked(tmp_path: Path, resumable: bool) -> None:
    boss = Script("It is 3.")
    subagent = Subagent("worker", Worker, immediate=True, resumable=resumable)
    async with open_team(tmp_path, boss, work("Three."), subagent) as team:
        await team.ask("Count.")
        await team.rest()
        (child,) = await team.children()
        result = f"Three.\n\n(From the subagent {child.reference}.)" if resumable else "Three."
        assert await team.texts() == ["user Count.", f"tool {result}", "assistant It is 3."]
        assert boss.texts(0)[-1] == f"tool-return {result}"
        assert (await (await team.find()).messages.list()).messages[0].content == "Count."
        await team.ask("Again.")
        await team.rest("done", "done")
        # One that stays is not made twice.
        assert len(await team.children()) == (1 if resumable else 2)


async def test_a_run_goes_on_if_its_answer_with_an_immediate_subagent_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted, get = list[bool](), ThreadMessages.get

    async def remove(id: str) -> None:
        await team.boss.messages.delete(id)

    async def get_and_delete(self: ThreadMessages, id: str) -> Message | None:
        found = await get(self, id)
        if found is not None and found.tool_calls and not deleted:
            deleted.append(True)
            await asyncio.get_running_loop().create_task(remove(id), context=contextvars.Context())
        return found

    subagent = Subagent("worker", Worker, immediate=True)
    async with open_team(tmp_path, Script("It is 3."), work("Three."), subagent) as team:
        monkeypatch.setattr(ThreadMessages, "get", get_and_delete)
        await team.ask("Count.")
        await team.rest()
        assert deleted
        assert (await team.texts())[-1] == "assistant It is 3."


TOKEN = Variable("TOKEN", scoped=True)


def read_files(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.iterdir())


async def find_needs(team: Team) -> tuple[str, Any]:
    """Wait until the run needs variables; return its id, and what it needs."""
    found = list[Any]()

    async def look() -> bool:
        found[:] = [each for each in await team.boss.tasks.list() if each.value]
        return bool(found)

    await until(look)
    return found[0].id, found[0].value["needs"]


async def test_a_missing_scoped_variable_is_asked_for_and_starts_the_child(tmp_path: Path) -> None:
    @tool
    async def read(worker: Worker) -> str:
        """Read the token."""
        return str(len((await worker.env.get("TOKEN")).reveal()))

    boss, secret = Script(call("worker", message="Count."), "Done."), "s3cr3t-and-long"
    subagent = Subagent("worker", Worker, variables=[TOKEN])
    side, prompts = Side("reader", session_stop="read"), [make_prompt("reader", read, model="work")]
    async with open_team(tmp_path, boss, work(call("read")), subagent, side=side, prompts=prompts) as team:
        # That of the parent is not handed down.
        await team.boss.env.set("TOKEN", "the parent's")
        await team.ask()
        run, needs = await find_needs(team)
        (found,) = await team.boss.messages.open_calls()
        assert needs == {"call": found["id"], "agent": "worker", "variables": ["TOKEN"]}
        assert await team.children() == []
        with pytest.raises(ValueError, match="the run needs these variables, and no others: TOKEN"):
            await team.boss.call(Boss.supply, run, {"OTHER": "x"})
        assert await team.boss.call(Boss.supply, run, {"TOKEN": secret}) is True
        await team.rest()
        (found,) = [each for each in await team.history() if each.role == "tool"]
        assert found.content == str(len(secret))
        assert (await team.boss.tasks.get(run)).value is None
        with pytest.raises(NotFound, match="needs no variables"):
            await team.boss.call(Boss.supply, run, {"TOKEN": secret})
    assert secret.encode() not in read_files(tmp_path)


@pytest.mark.parametrize("value", [{"at": "home"}, {"needs": 7}, {"needs": {"call": "c"}}])
async def test_a_run_of_another_task_needs_no_variables(tmp_path: Path, value: Any) -> None:
    async with open_team(tmp_path, Script(""), work("One.")) as team:
        run = (await team.boss.tasks.run("other", value)).id

        async def look() -> bool:
            return bool((await team.boss.tasks.get(run)).value == value)

        await until(look)
        with pytest.raises(NotFound, match=f"the run {run} needs no variables"):
            await team.boss.call(Boss.supply, run, {"TOKEN": "x"})


@pytest.mark.parametrize("place", ["user", "app"])
async def test_a_scoped_variable_of_the_user_or_the_app_is_not_asked_for(tmp_path: Path, place: str) -> None:
    boss = Script(call("worker", message="Count."), "Done.")
    env = {"TOKEN": "x"} if place == "app" else {}
    async with open_team(
        tmp_path, boss, work("Three."), Subagent("worker", Worker, variables=[TOKEN]), env=env
    ) as team:
        if place == "user":
            team.boss = team.app.session(Boss, "mine", user_id="ada")
            await team.app.user("ada").env.set("TOKEN", "x")
        await team.ask()
        await team.rest()
        assert "tool Three." in await team.texts()


async def test_a_variable_that_is_not_scoped_is_handed_down_or_asked_for(tmp_path: Path) -> None:
    boss = Script(call("worker", message="Count."), "Done.")
    variables = [Variable("HAS"), Variable("NEEDS"), Variable("WANTS", required=False)]
    async with open_team(tmp_path, boss, work("Three."), Subagent("worker", Worker, variables=variables)) as team:
        await team.boss.env.set("HAS", "x")
        await team.ask()
        run, needs = await find_needs(team)
        assert needs["variables"] == ["NEEDS"]
        await team.boss.call(Boss.supply, run, {"NEEDS": "y"})
        await team.rest()
        worker = (await team.find()).env
        assert [(await worker.get(name)).reveal() for name in ("HAS", "NEEDS")] == ["x", "y"]


async def test_a_scoped_variable_must_be_scoped_in_the_class_of_the_child(tmp_path: Path) -> None:
    subagent = Subagent("worker", Worker, variables=[Variable("OTHER", scoped=True)])
    with pytest.raises(ValueError, match=r"Worker needs `Env\(scoped=\{'OTHER'\}\)`"):
        async with open_team(tmp_path, Script("Done."), work("Three."), subagent):
            pass


async def test_each_of_several_calls_asks_for_its_variables_in_turn(tmp_path: Path) -> None:
    boss = Script([("worker", {"message": f"Count {at}."}) for at in range(3)], "Done.")
    async with open_team(tmp_path, boss, work("One."), Subagent("worker", Worker, variables=[TOKEN])) as team:
        await team.ask()
        run = ""
        for _ in range(3):
            run = await find_needed(team)
            assert await team.boss.call(Boss.supply, run, {"TOKEN": "x"}) is True
        await team.rest()
        assert len([each for each in await team.texts() if each == "tool One."]) == 3
        assert (await team.boss.tasks.get(run)).value is None


async def test_a_run_that_hangs_in_the_hook_of_a_new_child_can_be_stopped_and_goes_on_when_it_is_mended(
    tmp_path: Path,
) -> None:
    begun, mended = asyncio.Event(), asyncio.Event()

    class Hanging(Hooks):
        async def after_subagent_created(self, thread: Any, child: Any) -> None:
            begun.set()
            if not mended.is_set():
                await asyncio.Event().wait()

    boss = Script(call("worker", message="Count."), call("worker", message="Count."), "Done.")
    async with open_team(tmp_path, boss, work("Three."), hooks=[Hanging()]) as team:
        await team.ask()
        async with asyncio.timeout(10):
            await begun.wait()
            await team.boss.messages.stop()
        mended.set()
        await team.ask("Again.")
        await team.rest("cancelled", "done")
        assert (await team.texts())[-2:] == ["tool Three.", "assistant Done."]


async def test_a_run_whose_call_waits_for_variables_goes_on_when_the_call_is_deleted(tmp_path: Path) -> None:
    boss = Script(call("worker", message="Count."), "Done.")
    async with open_team(tmp_path, boss, work("One."), Subagent("worker", Worker, variables=[TOKEN])) as team:
        await team.ask()
        run = await find_needed(team)
        (found,) = [each for each in await team.history() if each.tool_calls]
        await team.boss.messages.delete(found.id)
        await team.rest()
        assert (await team.texts())[-1] == "assistant Done."
        assert await team.children() == []
        assert (await team.boss.tasks.get(run)).value is None


async def find_needed(team: Team) -> str:
    """Wait until the run needs variables for its next call, and has left the memory; return its id."""
    found = list[str]()

    async def look() -> bool:
        calls = await team.boss.messages.open_calls()
        runs = [each for each in await team.boss.tasks.list() if each.value and each.status == "sleeping"]
        found[:] = [each.id for each in runs if calls and each.value["needs"]["call"] == calls[0]["id"]]
        return bool(found)

    await until(look)
    return found[0]


async def test_what_a_run_needs_is_not_shown_while_its_child_works(tmp_path: Path) -> None:
    boss = Script([("worker", {"message": f"Count {at}."}) for at in range(2)], "Done.")
    worker = work("One.", hang)
    async with open_team(tmp_path, boss, worker, Subagent("worker", Worker, variables=[TOKEN])) as team:
        await team.ask()
        run = ""
        for _ in range(2):
            run = await find_needed(team)
            await team.boss.call(Boss.supply, run, {"TOKEN": "x"})

        async def is_asked() -> bool:
            return len(worker.seen) == 2

        await until(is_asked)
        assert (await team.boss.tasks.get(run)).value is None


@pytest.mark.parametrize("event", ["plait:result:c0-0", "plait:variables:c0-0", "plait:other"])
async def test_events_of_the_loop_cannot_be_sent(tmp_path: Path, event: str) -> None:
    boss, worker = Script(call("worker", message="Count."), "Done."), work(hang)
    async with open_team(tmp_path, boss, worker) as team:
        await team.ask()

        async def is_asked() -> bool:
            return bool(worker.seen)

        await until(is_asked)
        (run,) = await team.boss.tasks.list()
        data = {"text": "forged", "is_error": False, "attachments": []}
        with pytest.raises(ValueError, match="plait itself sends those that begin with plait:"):
            await team.boss.tasks.send(run.id, event, data)
        with pytest.raises(InvalidArguments, match="plait itself sends those"):
            await team.boss.call("tasks:send", run.id, event, data)
        assert [run.status for run in await team.boss.tasks.list()] != ["done"]


@pytest.mark.parametrize("text", ["", "I count."])
async def test_a_child_that_ends_in_the_midst_of_its_work_reports_an_error(tmp_path: Path, text: str) -> None:
    class Saying(Hooks):
        def before_create_message(self, thread: Any, message: Message) -> Message:
            is_call = bool(message.tool_calls)
            return msgspec.structs.replace(message, content=text) if is_call else message

    boss, side = Script(call("worker", message="Count."), "Done."), Side("worker", max_steps=1)
    async with open_team(
        tmp_path, boss, work(call("finish", result="Three.")), side=side, worker_hooks=[Saying()]
    ) as team:
        await team.ask()
        await team.rest()
        (found,) = [each for each in await team.history() if each.role == "tool"]
        said = "The subagent has ended without an answer: it has made all of its steps"
        assert (found.content, found.metadata["plait"]["tool_status"]) == (f"{text}\n\n{said}".strip(), "error")


async def test_the_result_of_a_stop_tool_is_the_answer_of_a_child_that_says_nothing(tmp_path: Path) -> None:
    boss, side = Script(call("worker", message="Count."), "Done."), Side("worker", stop_tool="finish")
    async with open_team(tmp_path, boss, work(call("finish", result="Three.")), side=side) as team:
        await team.ask()
        await team.rest()
        (found,) = [each for each in await team.history() if each.role == "tool"]
        assert (found.content, found.metadata["plait"]["tool_status"]) == ("Three.", "success")


async def test_no_more_than_the_most_instances_of_a_subagent_live_at_once(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def count() -> Any:
        await go.wait()
        return "Three."

    boss = Script([("worker", {"message": f"Count {at}."}) for at in range(4)], "Begun.", "Noted.")
    subagent = Subagent("worker", Worker, blocking=False, max_instances=3)
    async with open_team(tmp_path, boss, work(count), subagent) as team:
        await team.ask()
        await team.rest()
        children = [each.reference for each in await team.children()]
        last = [each for each in await team.history() if each.role == "tool"][-1]
        many = f"there are 3 of at most 3 instances of worker: {', '.join(children)}"
        assert last.content == f"Failed to execute tool: {many}; wait until one has reported"
        assert (len(children), last.metadata["plait"]["tool_status"]) == (3, "error")
        go.set()


async def test_an_instance_that_has_reported_makes_room_for_the_next_one(tmp_path: Path) -> None:
    boss = Script([("worker", {"message": f"Count {at}."}) for at in range(3)], "Done.")
    async with open_team(tmp_path, boss, work("Three."), Subagent("worker", Worker, max_instances=1)) as team:
        await team.ask()
        await team.rest()
        assert [each for each in await team.texts() if each.startswith("tool")] == ["tool Three."] * 3


async def test_a_hook_of_a_new_child_that_stops_the_run_has_stopped_it_after_the_wait(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def count() -> Any:
        await go.wait()
        return "Three."

    class Stopping(Hooks):
        def after_subagent_created(self, thread: Any, child: Any) -> None:
            thread.execution.stop()

    boss = Script(call("worker", message="Count."), "Never.")
    async with open_team(tmp_path, boss, work(count), hooks=[Stopping()]) as team:
        await team.ask()

        async def has_left() -> bool:
            return [run.status for run in await team.boss.tasks.list()] == ["sleeping"]

        await until(has_left)
        go.set()
        await team.rest()
        assert await team.texts() == ["user Do it.", "tool Three."]


async def test_a_stop_ends_a_subagent_that_is_not_resumable_and_works_for_a_call(tmp_path: Path) -> None:
    boss, worker = Script(call("worker", message="Count."), "Again."), work(hang)
    async with open_team(tmp_path, boss, worker) as team:
        await team.ask()

        async def is_asked() -> bool:
            return bool(worker.seen)

        await until(is_asked)
        child = await team.find()
        assert await team.boss.messages.stop()

        async def is_terminated() -> bool:
            return [each.status for each in await team.children()] == ["terminated"]

        await until(is_terminated)
        assert [run.status for run in await child.tasks.list()] == ["cancelled"]
        assert await team.texts() == ["user Do it.", "tool Execution stopped by user"]


async def test_a_stop_cancels_the_work_of_a_resumable_subagent_which_answers_the_next_message(tmp_path: Path) -> None:
    async def go_on() -> Said:
        return call("subagent_message", reference=find_reference(boss), message="Again.")

    boss = Script(call("subagent_create", agent="worker", name="Ada", message="Count."), go_on, "Done.")
    worker = work(hang, "Four.")
    async with open_team(tmp_path, boss, worker, Subagent("worker", Worker, resumable=True)) as team:
        await team.ask()

        async def is_asked() -> bool:
            return bool(worker.seen)

        await until(is_asked)
        assert await team.boss.messages.stop()

        async def is_idle() -> bool:
            return [each.status for each in await team.children()] == ["idle"]

        await until(is_idle)
        await team.ask("Go on.")
        await team.rest("cancelled", "done")
        answer = f"tool Four.\n\n(From the subagent {(await team.children())[0].reference}.)"
        texts = ["user Do it.", "tool Execution stopped by user", "user Go on.", answer, "assistant Done."]
        assert await team.texts() == texts


async def test_a_subagent_that_does_not_block_goes_on_after_a_stop_and_reports(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def count() -> Any:
        await go.wait()
        return "Three."

    boss = Script(call("worker", message="Count."), hang)
    async with open_team(tmp_path, boss, work(count), Subagent("worker", Worker, blocking=False)) as team:
        await team.ask()

        async def is_asked_again() -> bool:
            return len(boss.seen) == 2

        await until(is_asked_again)
        assert await team.boss.messages.stop()
        go.set()

        async def has_reported() -> bool:
            return (await team.texts())[-1].endswith("reports:\nThree.")

        await until(has_reported)
        assert await team.boss.call(Boss.is_stopped)


@pytest.mark.parametrize("may", [True, False])
async def test_clients_that_may_approve_supply_variables_over_http(tmp_path: Path, *, may: bool) -> None:
    async def authorize(principal: object, thread: object, action: str) -> bool:
        return may or action != "approve"

    boss, worker = Script(call("worker", message="Count."), "Done."), work("Three.")
    subagent = Subagent("worker", Worker, variables=[TOKEN])
    async with open_team(tmp_path, boss, worker, subagent, authorize=authorize) as team:
        await team.ask()
        run = await find_needed(team)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(team.app), base_url="http://localhost") as web:
            url = "/threads/boss/one/rpc/run:supply"
            refused = await web.post(url, json={"args": [run, {"OTHER": "x"}]})
            answer = await web.post(url, json={"args": [run, {"TOKEN": "x"}]})
        if not may:
            assert (refused.status_code, answer.status_code) == (403, 403)
            return
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_arguments")
        assert (answer.status_code, answer.json()) == (200, {"result": True})
        await team.rest()
        assert "tool Three." in await team.texts()


async def test_a_subagent_cannot_be_invoked(tmp_path: Path) -> None:
    async with open_team(tmp_path, Script("Done."), work("Three.")) as team:
        result = await team.boss.call(Boss.invoke, "worker")
        assert (result.text, result.is_error) == ("Only models and `queue_tool` can call a subagent.", True)
        assert await team.children() == []


async def test_a_child_works_on_when_a_run_of_another_agent_ends_in_it(tmp_path: Path) -> None:
    @tool(needs_approval=True)
    async def buy(worker: Worker) -> str:
        """Buy."""
        return "bought"

    buyer = Agent("worker", Side("buyer"))
    boss, worker = Script(call("worker", message="Buy."), "Done."), work(call("buy"), "Bought.")
    app = Plait(Boss, Worker, store=f"sqlite:///{tmp_path / 'plait.db'}", secret="x" * 32, shutdown_timeout=0.1)
    boss_prompt, prompt = make_prompt("boss", Subagent("worker", Worker)), make_prompt("buyer", buy, model="work")
    app.execution(Boss, agents=[Agent("boss", Side("boss"))], prompts=[boss_prompt], models=[boss.model])
    app.execution(Worker, agents=[buyer], prompts=[prompt], models=[worker.model])

    @app.agent("indexer", thread=Worker, durable=True)
    async def index(ctx: Context[Worker]) -> str:
        return "indexed"

    async with app:
        team = Team(app)
        await team.ask()
        await until(lambda: len(worker.seen) == 1)
        child = await team.find()

        async def is_waiting() -> bool:
            return [run.status for run in await child.tasks.list("worker")] == ["sleeping"]

        await until(is_waiting)
        assert await app.run("indexer", thread=child) == "indexed"
        (asked,) = await child.messages.open_calls()
        (run,) = await child.tasks.list("worker")
        assert await child.tasks.send(run.id, f"approval:{asked['id']}", {"approved": True})
        await team.rest()
        assert (await team.texts())[-2:] == ["tool Bought.", "assistant Done."]


async def test_a_subagent_ends_its_work_when_the_message_with_its_call_is_deleted(tmp_path: Path) -> None:
    hold = Hold()
    boss, worker = Script(call("worker", message="Count."), "Done."), work(lambda: hold.wait("I have counted."))
    async with open_team(tmp_path, boss, worker) as team:
        await team.ask()
        await hold.until_begun()

        async def is_waiting() -> bool:
            return [run.status for run in await team.boss.tasks.list()] == ["sleeping"]

        await until(is_waiting)
        await team.boss.messages.delete((await team.history())[-1].id)
        await team.rest()
        child = await team.find()

        async def has_ended() -> bool:
            return [run.status for run in await child.tasks.list()] == ["cancelled"]

        await until(has_ended)
        assert await team.texts() == ["user Do it.", "assistant Done."]


async def test_a_resumable_subagent_does_not_begin_a_call_that_was_stopped_in_its_queue(tmp_path: Path) -> None:
    hold = Hold()

    async def ask_again() -> Said:
        child = await team.find()
        await child.messages.queue("Work of its own.")
        await hold.until_begun()
        (known,) = await team.children()
        return call("subagent_message", reference=known.reference, message="Two.")

    made = call("subagent_create", agent="worker", name="w", message="One.")
    boss, worker = Script(made, ask_again), work("One.", lambda: hold.wait("Own."), "Two.")
    async with open_team(tmp_path, boss, worker, Subagent("worker", Worker, resumable=True)) as team:
        await team.ask()
        await hold.until_begun()
        child = await team.find()

        async def is_queued() -> bool:
            return [each.content for each in await child.messages.pending()] == ["Two."]

        await until(is_queued)
        await team.boss.messages.stop()

        async def has_ended() -> bool:
            return [run.status for run in await child.tasks.list()][1:] == ["cancelled"]

        await until(has_ended)
        assert not await child.messages.pending()


@pytest.mark.parametrize(("options", "depth"), [({}, 5), ({"max_depth": 2}, 2), ({"immediate": True}, 0)])
async def test_an_agent_that_lends_itself_comes_to_an_end(tmp_path: Path, options: Any, depth: int) -> None:
    asked = list[bool]()

    async def say() -> Said:
        asked.append(has_tool := bool(script.tools[-1]))
        return call("boss", message="Again.") if has_tool and not options.get("immediate") else "The bottom."

    script = Script(say)
    app = Plait(Boss, store=f"sqlite:///{tmp_path / 'plait.db'}", shutdown_timeout=0.1)
    prompts = [make_prompt("boss", Subagent("boss", Boss, **options))]
    app.execution(Boss, agents=[Agent("boss", Side("boss", stop_tool="boss"))], prompts=prompts, models=[script.model])
    async with app:
        boss = app.thread(Boss, "one")
        await boss.messages.queue("Dig.")
        await until(lambda: False in asked)
        run = (await boss.tasks.list("boss"))[0]
        assert (await boss.tasks.wait(run.id)).status == "done"
        assert [each.content for each in (await boss.messages.list()).messages][-1] == "The bottom."
    assert sorted(asked) == [False, *[True] * depth]
