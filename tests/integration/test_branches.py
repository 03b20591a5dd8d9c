"""Branches by the doors of clients: what they see, and who may change them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request
from tests.integration.socket_client import TIMEOUT, http
from tests.running import running

from plait import Context, MemoryStore, Messages, Plait, Principal, Tasks, Thread, ThreadKey
from plait_client import CallError, Room, connect
from plait_schemas.conversation import Item

pytestmark = pytest.mark.relayed

MINE = ["regenerate", "edit", "switch"]


class Chat(Thread[dict[str, Any]]):
    messages = Messages(agent="bot", live=True)


class Desk(Chat):
    tasks = Tasks()
    messages = Messages(agent="durable", live=True)


def authenticate(request: Request) -> Principal | None:
    token = request.headers.get("authorization", "").removeprefix("Bearer ") or request.query_params.get("token")
    return Principal(token) if token else None


def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
    user = "" if principal is None else principal.id
    return {"approve": user == "staff", "send": user != "guest"}.get(action, True)


@pytest.fixture
async def address() -> AsyncIterator[str]:
    counts: dict[str, int] = {}
    app = Plait(Chat, Desk, store=MemoryStore(), secret="x" * 32, authenticate=authenticate, authorize=authorize)

    @app.agent("bot", thread=Chat)
    async def bot(ctx: Context[Chat]) -> None:
        while taken := await ctx.thread.messages.take(limit=1):
            counts[ctx.thread.name] = count = counts.get(ctx.thread.name, 0) + 1
            async with ctx.thread.messages.stream() as answer:
                answer.append(f"{taken[0].content} {count}")
                if taken[0].content == "wait":
                    await asyncio.Event().wait()
            await ctx.flush()

    @app.agent("durable", thread=Desk, durable=True)
    async def durable(ctx: Context[Desk]) -> None:
        async def take() -> str | None:
            taken = await ctx.thread.messages.take(limit=1)
            return taken[0].content if taken else None

        async def answer() -> None:
            if content == "wait":
                await asyncio.Event().wait()
            await ctx.thread.messages.inject("assistant", f"{content} 1")

        while (content := await ctx.step.do("take", take)) is not None:
            await ctx.step.do("answer", answer)
            ctx.step.checkpoint(None)

    async with running(app) as found:
        # A question that no user has asked.
        await app.thread(Chat, "news").part(Chat.messages).queue("n")
        yield found


def enter(address: str, user: str = "ada", name: str = "one", kind: str = "chat") -> Any:
    return connect(f"ws://{address}/threads/{kind}/{name}", token=user)


async def shown(room: Room[Any], *expected: str) -> list[Item]:
    """Wait until a client shows this, and return the messages."""
    async with asyncio.timeout(TIMEOUT):
        async for items in room.messages:
            if [each.content for each in items if each.status == "completed"] == [*expected]:
                return [*items]
    raise AssertionError


async def test_clients_ask_again_edit_and_switch_and_all_see_the_same_line(address: str) -> None:
    async with enter(address) as room, enter(address, "bob") as other:
        await other.messages.open()
        await room.messages.send("a")
        first = await shown(room, "a", "a 1")
        assert await room.messages.regenerate(first[1].id) is True
        again = await shown(room, "a", "a 2")
        assert await room.messages.regenerate(first[1].id) is False
        siblings = await room.messages.siblings(again[1].id)
        assert [each.content for each in siblings] == ["a 1", "a 2"]
        id = await room.messages.edit(first[0].id, "A")
        edited = await shown(other, "A", "A 3")
        assert edited[0].id == id
        assert await room.messages.switch(first[1].id) is True
        for each in (room, other):
            assert [item.id for item in await shown(each, "a", "a 1")] == [item.id for item in first]


async def test_a_client_that_was_away_gets_the_branch_that_is_shown(address: str) -> None:
    async with enter(address) as room, enter(address) as other:
        await room.messages.send("a")
        first = await shown(room, "a", "a 1")
        await shown(other, "a", "a 1")
        assert other.messages.items == first


@pytest.mark.parametrize("method", MINE)
async def test_only_who_has_asked_or_may_approve_changes_a_branch(address: str, method: str) -> None:
    async with enter(address) as room:
        await room.messages.send("a")
        items = await shown(room, "a", "a 1")
        args = [items[1].id] if method != "edit" else [items[0].id, "A"]
        for user, code in (("bob", "forbidden"), ("guest", "forbidden")):
            async with enter(address, user) as other:
                with pytest.raises(CallError) as raised:
                    await other.call(f"messages:{method}", *args)
                assert raised.value.code == code
            async with http(address) as client:
                answer = await client.post(
                    f"/threads/chat/one/rpc/messages:{method}",
                    json={"args": args},
                    headers={"authorization": f"Bearer {user}"},
                )
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, code)
        assert [each.content for each in room.messages.items] == ["a", "a 1"]
        async with enter(address, "staff") as staff:
            await staff.call(f"messages:{method}", *args)
        assert (await room.messages.siblings(items[0].id))[0].id == items[0].id


@pytest.mark.parametrize("kind", ["chat", "desk"])
async def test_only_who_may_end_a_run_of_another_user_changes_the_branch_while_it_answers(
    address: str, kind: str
) -> None:
    async with enter(address, kind=kind) as room, enter(address, "bob", kind=kind) as bob:
        await room.messages.send("a")
        items = await shown(room, "a", "a 1")
        await bob.messages.send("wait")
        async with asyncio.timeout(TIMEOUT):
            async for found in room.messages:
                if len(found) > 2 and (found[2].status == "completed" or found[-1].status == "streaming"):
                    break
        for method, args in (("edit", [items[0].id, "A"]), ("regenerate", [items[1].id])):
            with pytest.raises(CallError) as raised:
                await room.call(f"messages:{method}", *args)
            assert raised.value.code == "forbidden"


@pytest.mark.parametrize("method", MINE)
async def test_only_who_may_send_changes_a_branch_at_a_question_of_no_user(address: str, method: str) -> None:
    async with enter(address, "guest", "news") as guest, enter(address, "bob", "news") as bob:
        await guest.messages.open()
        items = await shown(bob, "n", "n 1")
        args = [items[1].id] if method != "edit" else [items[0].id, "N"]
        with pytest.raises(CallError) as raised:
            await guest.call(f"messages:{method}", *args)
        assert raised.value.code == "forbidden"
        async with http(address) as client:
            answer = await client.post(
                f"/threads/chat/news/rpc/messages:{method}",
                json={"args": args},
                headers={"authorization": "Bearer guest"},
            )
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
        assert [each.content for each in bob.messages.items] == ["n", "n 1"]
        await bob.call(f"messages:{method}", *args)


async def test_a_guest_that_may_not_send_reads_siblings(address: str) -> None:
    async with enter(address) as room, enter(address, "guest") as guest:
        await room.messages.send("a")
        items = await shown(room, "a", "a 1")
        assert [each.id for each in await guest.messages.siblings(items[1].id)] == [items[1].id]
        with pytest.raises(CallError) as raised:
            await guest.messages.siblings("no")
        assert raised.value.code == "not_found"


@pytest.mark.parametrize(
    ("method", "args", "code"),
    [
        ("regenerate", ["no"], "not_found"),
        ("edit", ["no", "A"], "not_found"),
        ("edit", [1, "A"], "invalid_arguments"),
        ("edit", ["no"], "invalid_arguments"),
        ("switch", [], "invalid_arguments"),
    ],
)
async def test_odd_calls_are_refused_with_a_reason(address: str, method: str, args: list[Any], code: str) -> None:
    async with enter(address) as room:
        await room.messages.send("a")
        await shown(room, "a", "a 1")
        with pytest.raises(CallError) as raised:
            await room.call(f"messages:{method}", *args)
        assert raised.value.code == code


async def test_an_edit_that_is_too_large_is_refused_and_changes_nothing(address: str) -> None:
    async with enter(address) as room:
        await room.messages.send("a")
        items = await shown(room, "a", "a 1")
        with pytest.raises(CallError) as raised:
            await room.messages.edit(items[0].id, "A" * ((1 << 20) - 200))
        assert raised.value.code == "too_large"
        assert [each.content for each in room.messages.items] == ["a", "a 1"]
