"""What Standard Agents says of executions, where no other test shows it."""

import asyncio
from pathlib import Path

import pytest
from tests.server.agents.execution.lab import Desk, Hold, Lab, Script, call, make_prompt, open_lab

from plait import Family, Plait, Terminated, Thread, Values
from plait.agents.execution.definitions import Agent, Handoff, Side
from plait.agents.execution.tools import tool

# Steps


async def test_under_fifty_triggers_at_once_calls_of_the_model_never_overlap(tmp_path: Path) -> None:
    inside, most = 0, 0

    async def say() -> str:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        return "yes"

    script = Script(say)
    async with open_lab(tmp_path, script) as lab:
        await asyncio.gather(*(lab.ask(f"{number}") for number in range(50)))
        while await lab.handle.messages.pending() or {*await lab.statuses()} != {"done"}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        asked = [each.content for each in await lab.history() if each.role == "user"]
        assert sorted(asked, key=lambda text: int(text or "")) == [f"{number}" for number in range(50)]
    assert most == 1


async def test_calls_of_tools_run_one_after_the_other_in_the_order_of_the_answer(tmp_path: Path) -> None:
    log: list[str] = []

    @tool
    async def work(desk: Desk, name: str) -> str:
        """Work."""
        log.append(f"begin {name}")
        await asyncio.sleep(0)
        log.append(f"end {name}")
        return name

    names = ["c", "a", "b"]
    script = Script([("work", {"name": name}) for name in names], "Done.")
    async with open_lab(tmp_path, script, tools=[work]) as lab:
        await lab.ask("Work!")
        await lab.rest()
        assert [each.content for each in await lab.history() if each.role == "tool"] == names
    assert log == [f"{what} {name}" for name in names for what in ("begin", "end")]


async def test_an_answer_is_stored_before_its_first_tool_and_results_before_the_next_call(tmp_path: Path) -> None:
    stored: list[list[str]] = []

    @tool
    async def look(desk: Desk) -> str:
        """Look at what others see."""
        stored.append(await lab.texts())
        return "looked"

    async def say() -> str:
        stored.append(await lab.texts())
        return "Done."

    async with open_lab(tmp_path, Script(call("look"), say), tools=[look]) as lab:
        await lab.ask("Look!")
        await lab.rest()
    begin = ["user Look!", "assistant ['look']"]
    assert stored == [begin, [*begin, "tool looked"]]


async def test_a_side_makes_no_more_than_its_steps_and_the_thread_answers_the_next_message(tmp_path: Path) -> None:
    @tool
    async def look(desk: Desk) -> str:
        """Look."""
        return "looked"

    script = Script(call("look"))
    agents = [Agent("desk", Side("clerk", max_steps=2))]
    async with open_lab(tmp_path, script, agents=agents, tools=[look]) as lab:
        await lab.ask("Look!")
        await lab.rest()
        assert len(script.seen) == 2
        await lab.ask("Again!")
        await lab.rest("done", "done")
        assert len(script.seen) == 4


async def test_a_session_ends_after_its_turns_and_the_thread_answers_the_next_message(tmp_path: Path) -> None:
    script, other = Script("a"), Script("b", name="other")
    agents = [Agent("desk", Side("finder"), Side("critic"), max_session_turns=2)]
    prompts = [make_prompt("finder"), make_prompt("critic", model="other")]
    async with open_lab(tmp_path, script, other, agents=agents, prompts=prompts) as lab:
        await lab.ask("Talk!")
        await lab.rest()
        assert (len(script.seen), len(other.seen)) == (2, 2)
        await lab.ask("Again!")
        await lab.rest("done", "done")
        assert (len(script.seen), len(other.seen)) == (4, 4)


# Messages


async def test_a_silent_message_is_shown_to_the_model(tmp_path: Path) -> None:
    script = Script("Yes.")
    async with open_lab(tmp_path, script) as lab:
        await lab.handle.messages.inject("user", "By the way.", silent=True)
        await lab.ask("Well?")
        await lab.rest()
        assert "user-prompt By the way." in script.texts()


async def test_an_injected_message_starts_no_call_and_one_in_an_execution_is_in_the_next(tmp_path: Path) -> None:
    @tool
    async def note(desk: Desk) -> str:
        """Add a message."""
        desk.messages.inject("system", "Noted.")
        return "done"

    script = Script(call("note"), "Yes.")
    async with open_lab(tmp_path, script, tools=[note]) as lab:
        await lab.handle.messages.inject("user", "Nothing.")
        assert await lab.statuses() == []
        await lab.ask("Note it!")
        await lab.rest()
        assert "system-prompt Noted." in script.texts()
        assert len(script.seen) == 2


# Identity


async def test_the_agent_of_a_thread_is_the_target_after_a_handoff(tmp_path: Path) -> None:
    agents = [Agent("desk", Side("clerk")), Agent("billing", Side("cashier"))]
    prompts = [make_prompt("clerk", Handoff("billing")), make_prompt("cashier", model="other")]
    script, other = Script(call("billing")), Script("Billing.", name="other")
    async with open_lab(tmp_path, script, other, agents=agents, prompts=prompts) as lab:
        desk = await lab.app._node.actor(lab.handle._key)
        assert isinstance(desk.thread, Desk)
        assert desk.thread.messages.agent == "desk"
        await lab.ask("My invoice?")
        await lab.rest()
        assert desk.thread.messages.agent == "billing"
        assert [each.content for each in await lab.history() if each.role == "user"] == ["My invoice?"]


class Parent(Thread[None]):
    family = Family()
    values = Values()


class Child(Thread[None]):
    family = Family()
    values = Values()


async def test_a_child_does_not_see_the_values_of_its_parent(tmp_path: Path) -> None:
    async with Plait(Parent, Child, store=f"sqlite:///{tmp_path / 'plait.db'}") as app:
        parent = (await app._node.actor(app.thread(Parent, "one")._key)).thread
        assert isinstance(parent, Parent)
        await parent.values.set("secret", 1)
        await parent.family.spawn(Child, "kid")
        assert await app.thread(Child, "kid").part(Child.values).get("secret") is None


# The end of a thread


async def terminate(lab: Lab) -> None:
    desk = (await lab.app._node.actor(lab.handle._key)).thread
    assert isinstance(desk, Desk)
    await desk.terminate()
    with pytest.raises(Terminated):
        await lab.ask("Still there?")
    with pytest.raises(Terminated):
        await desk.messages.resume()


async def test_terminating_a_thread_cancels_the_call_of_the_model(tmp_path: Path) -> None:
    hold, ended = Hold(), asyncio.Event()

    async def say() -> str:
        try:
            return str(await hold.wait("Late."))
        finally:
            ended.set()

    async with open_lab(tmp_path, Script(say)) as lab:
        await lab.ask("Well?")
        await hold.until_begun()
        await terminate(lab)
        async with asyncio.timeout(10):
            await ended.wait()
        assert not hold.go.is_set()
        assert await lab.texts() == ["user Well?"]
        assert await lab.statuses() == ["cancelled"]


async def test_terminating_a_thread_cancels_a_tool(tmp_path: Path) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    @tool
    async def hang(desk: Desk) -> str:
        """Wait for ever."""
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    async with open_lab(tmp_path, Script(call("hang")), tools=[hang]) as lab:
        await lab.ask("Hang!")
        async with asyncio.timeout(10):
            await begun.wait()
        await terminate(lab)
        async with asyncio.timeout(10):
            await cancelled.wait()


async def test_a_thread_has_its_history_values_and_agent_after_a_restart(tmp_path: Path) -> None:
    @tool
    async def keep(desk: Desk) -> str:
        """Keep a value."""
        await desk.values.push("kept", 1)
        return "kept"

    script = Script(call("keep"), "Done.")
    async with open_lab(tmp_path, script, tools=[keep]) as lab:
        await lab.ask("Keep it!")
        await lab.rest()
        history = await lab.history()
    async with open_lab(tmp_path, script, tools=[keep]) as lab:
        assert await lab.history() == history
        assert await lab.handle.values.get("kept") == [1]
        assert await lab.statuses() == ["done"]
    assert len(script.seen) == 2
