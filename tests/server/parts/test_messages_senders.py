"""Whom a message is from, and whose user the run has that takes it."""

from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.cases import each_case
from tests.server.parts.messages_lab import Chat, MessagesLab
from tests.server.session.guests import Guest, joined

from plait import Context, Messages, Plait, Principal, Thread, ThreadKey, endpoint, rpc
from plait.parts.messages.message import decode_message


async def guest(lab: MessagesLab, user: str | None, name: str = "one") -> Guest:
    actor = await lab.app._node.actor(ThreadKey("chat", name))
    return await joined(actor, f"client {user}", principal=None if user is None else Principal(user))


def send(guest: Guest, content: str, **fields: Any) -> None:
    guest.send("send", ref=1, part="messages", content=content, key=content, **fields)


def user_of(ctx: Context[Chat]) -> str | None:
    return None if ctx.user is None else ctx.user.id


async def tell(ctx: Context[Chat]) -> None:
    """Write down the users before and after all messages are taken."""
    before = user_of(ctx)
    if len(await ctx.thread.messages.pending()) < 2:
        ctx.thread.messages.take()
        ctx.thread.messages.inject("assistant", f"{before} {user_of(ctx)}")


async def tell_both(ctx: Context[Chat]) -> None:
    if len(await ctx.thread.messages.pending()) >= 2:
        ctx.thread.messages.take()
        ctx.thread.messages.inject("assistant", f"{user_of(ctx)}")


async def answer_of(lab: MessagesLab, name: str = "one") -> str | None:
    found = await lab.until(lambda all: any(each.role == "assistant" for each in all), name)
    return next(each.content for each in found if each.role == "assistant")


async def test_a_run_for_a_message_has_its_sender_as_user_after_it_was_taken(chats: MessagesLab) -> None:
    chats.work = tell
    send(await guest(chats, "ada"), "a")
    assert await answer_of(chats) == "None ada"


async def test_a_client_cannot_say_who_sends(chats: MessagesLab) -> None:
    chats.work = tell
    send(await guest(chats, "eve"), "a", sender="ada", metadata={"user": "ada"})
    assert await answer_of(chats) == "None eve"
    assert (await chats.all())[0].sender == "eve"


async def test_metadata_and_names_for_keys_do_not_change_the_sender(chats: MessagesLab) -> None:
    chats.work = tell
    await chats.handle.queue("a", key="k", sender="principal ada", metadata={"user": "ada"})
    assert await answer_of(chats) == "None None"


@pytest.mark.parametrize(("name", "user"), [("one", "None"), ("zoe:s1", "zoe")])
async def test_messages_of_several_senders_have_the_user_of_the_session(
    chats: MessagesLab, name: str, user: str
) -> None:
    chats.work = tell_both
    ada, bob = await guest(chats, "ada", name), await guest(chats, "bob", name)
    send(ada, "a")
    send(bob, "b")
    assert await answer_of(chats, name) == user


async def test_a_message_without_a_sender_has_the_user_of_the_session(chats: MessagesLab) -> None:
    chats.work = tell
    await chats.app.session(Chat, "s1", user_id="zoe").part(Chat.messages).queue("a")
    assert await answer_of(chats, "zoe:s1") == "None zoe"


async def test_what_is_taken_after_a_flush_has_its_own_sender(chats: MessagesLab) -> None:
    async def work(ctx: Context[Chat]) -> None:
        if len(await ctx.thread.messages.pending()) < 2:
            return
        found = []
        while ctx.thread.messages.take(limit=1).value:
            found.append(user_of(ctx))
            await ctx.flush()
            found.append(user_of(ctx))
        ctx.thread.messages.inject("assistant", f"{found}")

    chats.work = work
    ada, bob = await guest(chats, "ada"), await guest(chats, "bob")
    send(ada, "a")
    send(bob, "b")
    assert await answer_of(chats) == "['ada', 'ada', 'bob', 'bob']"


async def test_the_sender_is_stored(chats: MessagesLab) -> None:
    chats.work = tell
    send(await guest(chats, "ada"), "a")
    await answer_of(chats)
    await chats.restart()
    assert [each.sender for each in await chats.all()] == ["ada", None]
    await chats.app.fork_thread(Chat, "one", "two")
    assert (await chats.all("two"))[0].sender == "ada"


def test_a_message_that_was_stored_without_a_sender_is_read() -> None:
    assert decode_message(b'{"id":"1","role":"user"}').sender is None


async def test_clients_are_not_told_of_the_sender(chats: MessagesLab) -> None:
    ada = await guest(chats, "ada")
    ada.send("open", part="messages")
    send(ada, "a")
    await answer_of(chats)
    ada.send("open", part="messages")
    seen: list[Any] = []
    while sum(each["type"] == "page" for each in seen) < 2:
        seen.append(await ada.transport.next())
    shown = [each["message"] for each in seen if "message" in each]
    shown += [message for each in seen for message in each.get("items", [])]
    assert any(each["metadata"].get("user") == "ada" for each in shown if each["role"] == "user")
    assert all("sender" not in each for each in shown)


class Shop(Thread[None]):
    messages = Messages()

    @rpc
    async def order(self, key: str) -> None:
        await self.messages.queue("order", key=key)

    @rpc
    async def order_by(self, key: str) -> None:
        await self.thread(Shop, "one").part(Shop.messages).queue("order", key=key)

    @endpoint("POST", "/orders/{key}")
    async def receive(self, key: str) -> None:
        await self.order(key)

    async def on_request(self, request: Request) -> Response:
        await self.order("k")
        return Response()


def authenticate(request: Request) -> Principal:
    return Principal(request.headers["x-user"])


@each_case("users", [[None, None, None], ["ada", "ada", "bob", "ada"]])
@each_case("door", ["rpc", "endpoint", "on_request", "another thread", "socket"])
async def test_a_key_protects_a_retry_of_each_principal_and_of_clients_without_one(
    door: str, users: list[str | None]
) -> None:
    app = Plait(Shop, store="memory://", authenticate=None if users[0] is None else authenticate)
    transport = httpx.ASGITransport(app)
    async with app, httpx.AsyncClient(transport=transport, base_url="http://localhost") as web:

        async def send(number: int, user: str | None) -> None:
            headers, body = {} if user is None else {"x-user": user}, {"args": ["k"]}
            match door:
                case "rpc":
                    answer = await web.post("/threads/shop/one/rpc/order", json=body, headers=headers)
                case "endpoint":
                    answer = await web.post("/threads/shop/one/orders/k", headers=headers)
                case "on_request":
                    answer = await web.post("/threads/shop/one/other", headers=headers)
                case "another thread":
                    answer = await web.post("/threads/shop/two/rpc/order_by", json=body, headers=headers)
                case _:
                    actor = await app._node.actor(ThreadKey("shop", "one"))
                    guest = await joined(actor, f"client {number}", principal=None if user is None else Principal(user))
                    guest.send("call", ref=1, method="order", args=["k"])
                    await actor.wait_until_idle()
                    assert guest.frames[-1]["type"] == "result"
                    return
            assert answer.is_success, answer.text

        messages = app.thread(Shop, "one").part(Shop.messages)
        await messages.queue("order", key="k")  # Of server code.
        for each in enumerate(users):
            await send(*each)
        assert [each.sender for each in await messages.pending()] == [None, *dict.fromkeys(users)]
