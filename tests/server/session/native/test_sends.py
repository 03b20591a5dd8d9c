"""Messages that clients send: once, in order, with their sender."""

import json
from typing import Any

import pytest
from tests.server.fakes import TroubledStore
from tests.server.parts.messages_lab import Chat, MessagesLab, open_lab
from tests.server.session.guests import Guest, joined, until

from plait import Context, Limits
from plait.actor.actor import Actor
from plait.actor.connection import Rights
from plait.errors import Terminated
from plait.state.principal import Principal
from plait.store.thread_rows import ThreadKey


async def chat(lab: MessagesLab) -> Actor:
    return await lab.app._node.actor(ThreadKey("chat", "one"))


def send(guest: Guest, ref: int, content: str, key: str | None = None, **fields: Any) -> None:
    guest.send("send", ref=ref, part="messages", content=content, key=f"k{ref}" if key is None else key, **fields)


async def answers(guest: Guest, count: int) -> list[Any]:
    """Return the next answers to what was sent."""
    found: list[Any] = []
    while len(found) < count:
        frame = await guest.transport.next()
        if frame["type"] in ("sent", "unsent"):
            found.append(frame)
    return found


async def nothing(_: Context[Chat]) -> None:
    """Take nothing."""


async def test_a_message_is_queued_for_the_agent_and_acknowledged_when_it_is_durable(chats: MessagesLab) -> None:
    guest = await joined(await chat(chats), "ada")
    send(guest, 1, "hi", attachments=[{"type": "image", "url": "/a.png"}])
    (answer,) = await answers(guest, 1)
    found = await chats.until(lambda all: [each.content for each in all] == ["hi", "re hi"])
    message = found[0]
    assert (answer["type"], answer["ref"], answer["id"]) == ("sent", 1, message.id)
    assert (message.role, message.silent, message.depth) == ("user", False, 0)
    assert message.attachments == [{"type": "image", "url": "/a.png"}]
    assert message.metadata == {"connection": guest.connection.id, "key": "k1"}


async def test_the_server_names_the_sender(chats: MessagesLab) -> None:
    guest = await joined(await chat(chats), "ada", principal=Principal("u1"))
    send(guest, 1, "hi", role="system", metadata={"user": "root"}, silent=True, name="tool")
    await answers(guest, 1)
    message = (await chats.all())[0]
    assert (message.role, message.name, message.silent) == ("user", None, False)
    assert message.metadata == {"connection": guest.connection.id, "key": "k1", "user": "u1"}


async def test_a_message_that_is_sent_again_on_another_socket_is_one(chats: MessagesLab) -> None:
    chats.work = nothing
    for client, principal in (("ada", None), ("ada", None), ("bob", Principal("u")), ("eve", Principal("u"))):
        guest = await joined(await chat(chats), client, principal=principal)
        send(guest, 1, "hi", key="mine")
        (answer,) = await answers(guest, 1)
        assert answer["type"] == "sent"
        guest.leave()
    # One of a client, and one of a principal, whichever client that uses.
    assert len(await chats.all()) == 2


async def test_messages_stay_in_order_when_one_is_refused_for_the_time_being(troubled: MessagesLab) -> None:
    troubled.work = nothing
    messages = await troubled.messages()
    for number in range(999):
        messages.queue(f"{number}")
    guest = await joined(await chat(troubled), "ada")
    for ref in (1, 2, 3):
        send(guest, ref, f"m{ref}")
    found = await answers(guest, 3)
    assert [each["type"] for each in found] == ["sent", "unsent", "unsent"]
    assert (found[1]["code"], found[1]["retry_after"]) == ("rate_limited", 1.0)
    assert found[2]["code"] == "gap"
    await messages.take()
    for ref in (2, 3):
        send(guest, ref, f"m{ref}")
    assert [each["type"] for each in await answers(guest, 2)] == ["sent", "sent"]
    assert [each.content for each in await troubled.all()][-3:] == ["m1", "m2", "m3"]


async def test_what_could_not_be_stored_is_asked_for_again_in_order(troubled: MessagesLab) -> None:
    troubled.work = nothing
    store = troubled.store
    assert isinstance(store, TroubledStore)
    guest = await joined(await chat(troubled), "ada")
    store.fail_next()
    for ref in (1, 2):
        send(guest, ref, f"m{ref}")
    found = await answers(guest, 2)
    assert [(each["code"], each["retry_after"]) for each in found] == [("store_error", 1.0)] * 2
    send(guest, 2, "m2")
    assert (await answers(guest, 1))[0]["code"] == "gap"
    for ref in (1, 2):
        send(guest, ref, f"m{ref}")
    assert [each["type"] for each in await answers(guest, 2)] == ["sent", "sent"]
    assert [each.content for each in await troubled.all()] == ["m1", "m2"]


async def test_who_may_not_upload_attaches_no_file_of_the_thread(chats: MessagesLab) -> None:
    chats.work = nothing
    guest = await joined(await chat(chats), "ada")
    guest.connection.rights = Rights(may_upload=False)
    attached: list[Any] = [{"path": "attachments/a.png"}, {"path": "/attachments//a.png"}]
    others: list[Any] = [{"path": "a.png"}, {"path": 1}, {"path": "attachments/../a"}, {"url": "attachments/a.png"}]
    for ref, attachment in enumerate([*attached, *others], 1):
        send(guest, ref, "look", attachments=[{"url": "/b.png"}, attachment])
    found = await answers(guest, 6)
    assert [each.get("code") for each in found] == ["forbidden"] * 2 + [None] * 4
    assert len(await chats.all()) == 4
    guest.connection.rights = Rights()
    send(guest, 7, "look", attachments=attached)
    assert (await answers(guest, 1))[0]["type"] == "sent"


async def test_what_cannot_be_sent_is_refused_and_the_next_one_is_not(troubled: MessagesLab) -> None:
    troubled.work = nothing
    guest = await joined(await chat(troubled), "ada")
    guest.connection.readonly = True
    send(guest, 1, "a")
    await answers(guest, 1)
    guest.connection.readonly = False
    guest.connection.rights = Rights(may_send=False)
    send(guest, 2, "a")
    guest.connection.rights = Rights()
    send(guest, 3, "a", key="")
    send(guest, 4, "a", key="k" * 257)
    send(guest, 5, "x" * (1 << 20))
    guest.send("send", ref=6, part="values", content="a", key="k")
    deep: Any = {}
    for _ in range(100):
        deep = {"a": deep}
    send(guest, 7, "a", attachments=[deep])
    send(guest, 8, "good")
    found = await answers(guest, 7)
    assert [each.get("code") for each in found] == [
        "forbidden",
        "invalid_arguments",
        "invalid_arguments",
        "too_large",
        "not_found",
        "too_large",
        None,
    ]
    assert [each.content for each in await troubled.all()] == ["good"]


async def test_a_readonly_connection_may_not_send(troubled: MessagesLab) -> None:
    guest = await joined(await chat(troubled), "ada")
    guest.connection.readonly = True
    send(guest, 1, "a")
    assert (await answers(guest, 1))[0]["code"] == "readonly"


async def test_a_thread_that_was_terminated_takes_no_message(chats: MessagesLab) -> None:
    guest = await joined(await chat(chats), "ada")
    await (await chats.thread()).terminate()
    send(guest, 1, "a")
    assert (await answers(guest, 1))[0]["code"] == "terminated"


@pytest.mark.parametrize("loss", ["terminated", "forbidden", "readonly"])
async def test_what_is_queued_is_acknowledged_again_when_nothing_more_may_be_sent(
    loss: str, chats: MessagesLab
) -> None:
    chats.work = nothing
    found = []
    for number in range(2):
        guest = await joined(await chat(chats), "ada")
        if number:
            guest.connection.readonly = loss == "readonly"
            guest.connection.rights = Rights(may_send=loss != "forbidden")
        send(guest, 1, "hi", key="mine")
        found += await answers(guest, 1)
        if not number and loss == "terminated":
            await (await chats.thread()).terminate()
        if number:
            send(guest, 2, "more", key="other")
            assert (await answers(guest, 1))[0]["code"] == loss
        guest.leave()
    assert [each["type"] for each in found] == ["sent", "sent"]
    assert found[0]["id"] == found[1]["id"]


async def test_a_key_that_is_known_is_answered_in_a_terminated_thread(chats: MessagesLab) -> None:
    chats.work = nothing
    messages = await chats.messages()
    first = await messages.queue("hi", key="k", sender="me")
    await (await chats.thread()).terminate()
    assert (await messages.queue("hi", key="k", sender="me")).id == first.id
    with pytest.raises(Terminated):
        messages.queue("hi", key="other", sender="me")


async def test_the_rate_limit_holds_for_messages_and_pages() -> None:
    async with open_lab(TroubledStore(), limits=Limits(messages_per_second=0.001, message_burst=2)) as lab:
        guest = await joined(await chat(lab), "ada")
        for ref in (1, 2, 3):
            send(guest, ref, f"m{ref}")
        found = await answers(guest, 3)
        assert [each.get("code") for each in found] == [None, None, "rate_limited"]
        assert found[2]["retry_after"] > 1
        guest.send("open", part="messages", before=3)
        await until(lambda: guest.transport.sent[-1]["type"] == "unopened")
        assert (guest.transport.sent[-1]["code"], guest.transport.sent[-1]["before"]) == ("rate_limited", 3)


async def test_half_a_surrogate_pair_is_refused_in_its_turn(troubled: MessagesLab) -> None:
    guest = await joined(await chat(troubled), "ada")
    guest.send_text('{"type":"send","ref":1,"part":"messages","key":"k","content":"\\ud800"}')
    send(guest, 2, "good")
    found = await answers(guest, 2)
    assert [each.get("code") for each in found] == ["invalid_arguments", None]


@pytest.mark.parametrize("depth", [900, 2_000, 100_000])
async def test_a_message_that_is_nested_too_deep_is_refused_and_the_next_one_is_not(
    troubled: MessagesLab, depth: int
) -> None:
    troubled.work = nothing
    guest = await joined(await chat(troubled), "ada")
    text = '{"type":"send","ref":%d,"part":"messages","content":"a","key":"k","attachments":[{"a":%s}]}'
    guest.session.receive((text % (2, "[" * depth + "]" * depth)).encode(), is_text=True)
    guest.session.receive((text % (1, "[" * depth + "]" * depth)).encode(), is_text=True)
    send(guest, 2, "good")
    found = await answers(guest, 3)
    assert [(each["ref"], each.get("code")) for each in found] == [(2, "gap"), (1, "too_large"), (2, None)]
    assert [each.content for each in await troubled.all()] == ["good"]


async def test_a_message_is_refused_at_each_depth_at_which_it_may_still_be_decoded(troubled: MessagesLab) -> None:
    troubled.work = nothing
    guest = await joined(await chat(troubled), "ada")
    text = '{"type":"send","ref":%d,"part":"messages","content":"a","key":"k","attachments":[{"a":%s}]}'
    for ref in range(1, 101):
        depth = 900 + ref
        guest.session.receive((text % (ref, "[" * depth + "]" * depth)).encode(), is_text=True)
    assert [each["code"] for each in await answers(guest, 100)] == ["too_large"] * 100


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"type":"send","ref":1,"part":"messages","content":"a","key":"k","metadata":%s}', ("unsent", "too_large")),
        ('{"type":"send","ref":1,"part":"messages","content":"a","key":"k","attachments":%s}', ("unsent", "too_large")),
        ('{"type":"push","ref":1,"base":["e",0],"ops":[{"op":"add","path":"/a","value":%s}]}', ("nack", "too_large")),
        ('{"type":"call","ref":1,"method":"x","args":%s}', ("error", "too_large")),
        ('{"type":"message","data":%s}', ("error", "too_large")),
        ('{"type":"event","data":%s}', ("error", "bad_frame")),
    ],
)
async def test_a_frame_that_is_too_heavy_is_refused_without_its_content(
    troubled: MessagesLab, text: str, answer: tuple[str, str]
) -> None:
    guest = await joined(await chat(troubled), "ada")
    guest.session.receive((text % json.dumps([{}] * 100_000)).encode(), is_text=True)
    found = await guest.transport.next()
    assert (found["type"], found["code"]) == answer


@pytest.mark.parametrize("type", ["push", "call"])
async def test_a_change_or_a_call_that_is_nested_too_deep_is_refused_and_the_socket_stays_open(
    troubled: MessagesLab, type: str
) -> None:
    troubled.work = nothing
    guest = await joined(await chat(troubled), "ada")
    # Python 3.13 decodes what is nested ten times as deep as 3.11 does.
    deep = "[" * 20_000 + "]" * 20_000
    fields = (
        '"base":["e",0],"ops":[{"op":"add","path":"/a","value":%s}]' if type == "push" else '"method":"x","args":[%s]'
    )
    guest.session.receive(f'{{"type":"{type}","ref":1,{fields % deep}}}'.encode(), is_text=True)
    send(guest, 1, "good")
    frames: list[Any] = []
    while not frames or frames[-1]["type"] not in ("sent", "unsent"):
        frames.append(await guest.transport.next())
    assert [(each["type"], each["code"]) for each in frames if each.get("ref") == 1 and each["type"] != "sent"] == [
        ("nack" if type == "push" else "error", "too_large")
    ]


async def test_a_deep_frame_without_a_number_still_closes_the_socket(troubled: MessagesLab) -> None:
    guest = await joined(await chat(troubled), "ada")
    guest.session.receive(('{"type":"event","data":%s}' % ("[" * 2000 + "]" * 2000)).encode(), is_text=True)
    assert (await guest.transport.next())["code"] == "bad_frame"
