"""The seeds' own examples, in Python: what they promise, and what their originals lose."""

import asyncio
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.running import running

from plait import Interruption

App = Callable[[str], Any]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    """Return a function that loads an example again, as another process would; all use one file."""
    monkeypatch.setenv("PLAIT_STORE", f"sqlite:///{tmp_path}/seeds.db")
    monkeypatch.setenv("PLAIT_SECRET", "of the test")

    def load(name: str) -> Any:
        sys.modules.pop(f"examples.seeds.{name}", None)
        return importlib.import_module(f"examples.seeds.{name}")

    return load


# StateDemo


async def test_state_demo_counts_the_messages_of_a_conversation_by_the_header_of_its_answers(load: App) -> None:
    app = load("state_demo").app
    async with running(app) as address, httpx.AsyncClient(base_url=f"http://{address}") as web:
        first = await web.post("/run/state-demo", json={"message": "one"})
        assert (first.json()["response"], first.json()["message_count"]) == ("Received: one", 1)
        assert first.json()["request_time"] >= 0
        web.cookies.clear()
        header = {"x-thread-id": first.headers["x-thread-id"]}
        assert re.fullmatch(r"thrd_[0-9a-f]{32};[A-Za-z0-9+/]{43}=", header["x-thread-id"])
        again = await web.post("/run/state-demo", json={"message": "two"}, headers=header)
        assert again.json()["message_count"] == 2
        web.cookies.clear()
        other = await web.post("/run/state-demo", json={"message": "three"})
        assert other.json()["message_count"] == 1
        wrong = await web.post("/run/state-demo", json={"message": 4}, headers=header)
        assert (wrong.status_code, wrong.json()["error"]["path"]) == (422, "/message")


async def test_state_demo_counts_ten_requests_at_once_and_their_ends(load: App) -> None:
    demo = load("state_demo")
    async with demo.app as app:
        runs = (app.run("state-demo", {"message": str(number)}, thread="one") for number in range(10))
        assert [output.message_count for output in await asyncio.gather(*runs)] == [*range(1, 11)]

        @app.agent("look", thread=demo.Conversation)
        async def look(ctx: Any) -> list[Any]:
            values = ctx.thread.values
            return [await values.get("messages"), await values.get("completed chat"), ctx.state, ctx.session.state]

        assert await app.run("look", thread="one") == [[str(number) for number in range(10)], 10, {}, {}]


async def test_state_demo_counts_the_requests_of_a_user_in_all_conversations(load: App) -> None:
    async with load("state_demo").app as app:
        for thread, user, total in (("one", "ada", 1), ("two", "ada", 2), ("two", "grace", 1)):
            output = await app.run("state-demo", {"message": "hi"}, thread=thread, user_id=user)
            assert output.total_requests == total


# ConversationMemory


async def test_conversation_memory_remembers_over_a_restart_and_forgets_when_told(load: App) -> None:
    async with load("conversation_memory").app as app:
        assert await app.run("conversation-memory", "Hi", thread="one") == "You said “Hi”. I remember 1 messages."
    async with load("conversation_memory").app as app:
        answer = await app.run("conversation-memory", "Still there?", thread="one")
        assert answer == "You said “Still there?”, after “Hi”. I remember 3 messages."
        assert await app.run("conversation-memory", "reset", thread="one") == "Conversation reset."
        assert await app.run("conversation-memory", "Hi", thread="one") == "You said “Hi”. I remember 1 messages."


async def test_conversation_memory_keeps_the_latest_messages_only(load: App) -> None:
    memory = load("conversation_memory")
    async with memory.app as app:
        for number in range(memory.MOST):
            await app.run("conversation-memory", str(number), thread="one")

        @app.agent("look", thread=memory.Conversation)
        async def look(ctx: Any) -> list[Any]:
            return [await ctx.thread.values.get("messages"), await ctx.thread.values.get("turn_count")]

        messages, turns = await app.run("look", thread="one")
    assert turns == memory.MOST
    assert [message["role"] for message in messages] == ["user", "assistant"] * (memory.MOST // 2)
    assert [message["content"] for message in messages[::2]] == [str(number) for number in range(10, 20)]


# PersistentChat


async def test_persistent_chat_answers_in_a_stream_and_saves_after_it(load: App) -> None:
    async with load("persistent_chat").app as app:
        words = [word async for word in app.stream("persistent-chat", "Hi", thread="one")]
        assert ("".join(words), len(words)) == ("You said “Hi”. I remember 1 messages.", 7)
    chat = load("persistent_chat")
    async with chat.app as app:
        # A run waits for what follows the answer before it, and finds what that has saved.
        answer = await app.run("persistent-chat", "And now?", thread="one")
        assert "".join(answer) == "You said “And now?”, after “Hi”. I remember 3 messages."

        @app.agent("wait", thread=chat.Chat)
        async def wait(ctx: Any) -> None:
            """Is run when what follows the answer has ended."""

        # The conversation is in kv, too, and stays there when its thread is destroyed.
        await app.run("wait", thread="one")
        await app.thread(chat.Chat, "one").destroy()
        answer = await app.run("persistent-chat", "Still?", thread="one")
        assert "".join(answer) == "You said “Still?”, after “And now?”. I remember 5 messages."


# Custom thread ids


async def test_custom_thread_ids_give_each_user_a_conversation_of_their_own(load: App) -> None:
    app = load("custom_thread_ids").app
    async with running(app) as address:

        async def count(user: str | None) -> int:
            headers = {} if user is None else {"x-user-id": user}
            async with httpx.AsyncClient(base_url=f"http://{address}") as web:
                answer = await web.post("/run/count", headers=headers)
            return int(answer.json())

        users = ("ada", "grace", "ada", None, None, "ada")
        assert [await count(user) for user in users] == [1, 1, 2, 1, 1, 3]


# AgentState


async def test_agent_state_goes_on_at_another_node_where_one_has_ended(load: App) -> None:
    async with load("agent_state").app as app:
        await app.run("harness", "Hi", user_id="alice", session_id="2026-06-02-001")
    node = load("agent_state")
    async with node.app as app:
        answer = await app.run("harness", "Go on", user_id="alice", session_id="2026-06-02-001")
        assert answer == "You said “Go on”, after “Hi”. I remember 3 messages."
        state = await app.session(node.Harness, "2026-06-02-001", user_id="alice").state()
        assert [(message.role, message.content) for message in state.context][::2] == [
            ("user", "Hi"),
            ("user", "Go on"),
        ]
        assert (len(state.context), state.summary, state.tasks) == (4, "", ())


async def test_agent_state_is_of_one_user_and_session_and_its_requests_keep_their_order(load: App) -> None:
    harness = load("agent_state")
    async with harness.app as app:
        sessions = [("alice", "s1"), ("bob", "s1"), (None, "s1"), ("alice", "s2")]
        runs = [
            app.run("harness", f"{user} {session} {number}", user_id=user, session_id=session)
            for number in range(24)
            for user, session in sessions
        ]
        await asyncio.gather(*runs)
        for user, session in sessions:
            context = (await app.session(harness.Harness, session, user_id=user).state()).context
            said = [message.content for message in context if message.role == "user"]
            assert said == [f"{user} {session} {number}" for number in range(24)]
            assert [message.role for message in context] == ["user", "assistant"] * 24


async def test_an_attribute_reaches_its_request_and_is_not_kept(load: App) -> None:
    harness = load("agent_state")
    async with harness.app as app:
        tenant = harness.Tenant("tenant-7")
        first = await app.run("harness", "Hi", user_id="alice", session_id="s1", attributes=[tenant])
        assert first.startswith("[tenant-7] You said")
        assert (await app.run("harness", "Hi", user_id="alice", session_id="s1")).startswith("You said")


async def test_an_interrupt_stops_one_session_with_what_it_has_and_no_other(load: App) -> None:
    harness = load("agent_state")
    long = "word " * 20_000
    started = asyncio.Event()
    async with harness.app as app:
        app.on("agent.started", lambda ctx: started.set())
        alice, bob = (app.session(harness.Harness, "s1", user_id=user) for user in ("alice", "bob"))
        answers = [
            asyncio.create_task(app.run("harness", text, user_id=user, session_id="s1"))
            for user, text in (("alice", long), ("bob", "Hi"))
        ]
        await asyncio.wait_for(started.wait(), 60)
        assert await app.interrupt(alice, "Please stop and summarise.")
        stopped, other = await asyncio.gather(*answers)
        assert isinstance(stopped, Interruption)
        assert stopped.message == "Please stop and summarise."
        assert len(stopped.output) < len(long)
        assert f"You said “{long}".startswith(stopped.output)
        assert other == "You said “Hi”. I remember 1 messages."
        state = await alice.state()
        assert (state.tasks, state.summary[-11:]) == (("Please stop and summarise.",), "interrupted")
        assert (await bob.state()).tasks == ()
        assert not await app.interrupt(alice)
        assert (await app.run("harness", "Next", user_id="alice", session_id="s1")).startswith("You said “Next”")
