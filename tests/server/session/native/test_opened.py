"""Parts that clients open: pages, changes, what was missed, slow readers."""

from typing import Any

import pytest
from tests.server.parts.messages_lab import Chat, MessagesLab
from tests.server.session.guests import Guest, joined, until

from plait import Context
from plait.actor.actor import Actor
from plait.actor.connection import Rights
from plait.errors import CorruptThread, PlaitError, StoreError, Unavailable
from plait.parts.messages import thread_messages
from plait.session.native import opened
from plait.store.thread_rows import ThreadKey


async def chat(lab: MessagesLab) -> Actor:
    return await lab.app._node.actor(ThreadKey("chat", "one"))


async def viewer(lab: MessagesLab, client: str = "ada", **fields: Any) -> Guest:
    """Return a guest that has opened the messages, and was sent the page."""
    guest = await joined(await chat(lab), client)
    guest.send("open", part="messages", **fields)
    return guest


async def next_of(guest: Guest, type: str) -> Any:
    """Return the next frame of a type."""
    while (frame := await guest.transport.next())["type"] != type:
        pass
    return frame


def says(frame: Any) -> list[str]:
    return [each["content"] for each in frame.get("items", ())]


async def test_the_newest_page_is_the_answer_with_what_is_pending_after_the_history(chats: MessagesLab) -> None:
    async def nothing(_: Context[Chat]) -> None:
        """Take nothing."""

    chats.work = nothing
    messages = await chats.messages()
    for number in range(5):
        await messages.inject("user", f"m{number}")
    await messages.inject("system", "secret", silent=True)
    for each in ("q0", "q1"):
        await messages.queue(each)
    guest = await viewer(chats, limit=3)
    page = await next_of(guest, "page")
    assert says(page) == ["m2", "m3", "m4", "q0", "q1"]
    assert (page["reset"], page["more"]) == (True, True)
    assert [each.get("status") for each in page["items"]] == [None, None, None, "pending", "pending"]
    assert not any("silent" in each or "revision" in each for each in page["items"])
    guest.send("open", part="messages", before=page["items"][0]["position"])
    older = await next_of(guest, "page")
    assert (says(older), older["before"]) == (["m0", "m1"], page["items"][0]["position"])
    assert "more" not in older
    assert "reset" not in older


async def test_a_page_has_at_most_a_mebibyte_beside_what_is_pending(chats: MessagesLab) -> None:
    messages = await chats.messages()
    for number in range(8):
        await messages.inject("user", f"{number}" * 300_000)
    guest = await viewer(chats)
    page = await next_of(guest, "page")
    assert [text[0] for text in says(page)] == ["5", "6", "7"]
    assert page["more"]


async def test_changes_follow_the_page_with_dense_revisions_and_after_the_state_of_their_transaction(
    chats: MessagesLab,
) -> None:
    thread = await chats.thread()
    guest = await viewer(chats)
    page = await next_of(guest, "page")
    with thread.transaction():
        thread.set_state({"count": 1})
        first = thread.messages.inject("user", "a")
        thread.messages.inject("user", "hidden", silent=True)
    await first
    await thread.messages.update(first.value.id, "b")
    thread.set_state({"count": 2})
    await thread.messages.delete(first.value.id)
    frames = guest.frames
    assert [each["type"] for each in frames] == ["change", "part", "part", "change", "part"]
    parts = [each for each in frames if each["type"] == "part"]
    assert [each["op"] for each in parts] == ["insert", "update", "delete"]
    assert [each["revision"] - page["revision"] for each in parts] == [1, 2, 3]
    assert [each["message"]["content"] for each in parts[:2]] == ["a", "b"]
    assert parts[2]["id"] == first.value.id


async def test_a_frame_is_encoded_once_for_all_viewers(chats: MessagesLab, monkeypatch: pytest.MonkeyPatch) -> None:
    guests = [await viewer(chats, f"c{number}") for number in range(3)]
    for guest in guests:
        await next_of(guest, "page")
    sent: list[Any] = []
    for guest in guests:
        monkeypatch.setattr(guest.transport, "send", sent.append)
    await (await chats.messages()).inject("user", "hello")
    assert len(sent) == 3
    assert len({id(frame) for frame in sent}) == 1


async def test_a_run_shows_its_stream_in_pieces_and_what_it_has_taken(chats: MessagesLab) -> None:
    async def reply(ctx: Context[Chat]) -> None:
        ctx.thread.messages.take()
        async with ctx.thread.messages.stream() as answer:
            answer.append("Hel")
            await until(lambda: any(each.get("op") == "chunk" for each in guest.transport.sent))
            answer.append("lo")

    chats.work = reply
    guest = await viewer(chats)
    await next_of(guest, "page")
    question = await (await chats.messages()).queue("hi")
    await until(lambda: guest.transport.sent[-1].get("op") == "end")
    parts = [each for each in guest.frames if each["type"] == "part"]
    assert [each["op"] for each in parts] == ["insert", "insert", "chunk", "chunk", "take", "end"]
    assert parts[1]["message"]["taken"] == [question.id]
    assert [(each["text"], each.get("at", 0)) for each in parts[2:4]] == [("Hel", 0), ("lo", 3)]
    assert parts[4]["taken"] == {question.id: parts[1]["message"]["position"] - 1}
    assert parts[5]["status"] == "completed"


async def test_with_since_the_page_has_what_was_missed(chats: MessagesLab) -> None:
    messages = await chats.messages()
    kept, gone = await messages.inject("user", "kept"), await messages.inject("user", "gone")
    first = await viewer(chats)
    since = (await next_of(first, "page"))["revision"]
    first.leave()
    await messages.delete(gone.id)
    await messages.update(kept.id, "changed")
    await messages.inject("user", "new")
    second = await viewer(chats, "bob", since=since)
    page = await next_of(second, "page")
    assert says(page) == ["changed", "new"]
    assert page["removed"] == [gone.id]
    assert page["revision"] == since + 3
    assert "reset" not in page
    assert "more" not in page


async def test_more_than_a_thousand_revisions_or_a_mebibyte_missed_are_a_reset(chats: MessagesLab) -> None:
    messages = await chats.messages()
    first = await messages.inject("user", "first")
    guest = await viewer(chats, since=0)
    assert "reset" not in await next_of(guest, "page")
    for number in range(1000):
        messages.inject("user", f"{number}")
    await messages.inject("user", "last")
    guest.send("open", part="messages", since=1, limit=2)
    page = await next_of(guest, "page")
    assert (page["reset"], says(page)) == (True, ["999", "last"])
    guest.send("open", part="messages", since=2, limit=2)
    assert "reset" not in await next_of(guest, "page")
    for _ in range(2):
        await messages.inject("user", "x", attachments=[{"data": "x" * 600_000}])
    guest.send("open", part="messages", since=page["revision"])
    assert (await next_of(guest, "page"))["reset"]
    guest.send("open", part="messages", since=10**9)
    assert (await next_of(guest, "page"))["reset"]
    assert first.position


async def test_since_below_zero_is_a_reset_without_silent_messages(chats: MessagesLab) -> None:
    messages = await chats.messages()
    await messages.inject("user", "shown")
    await messages.inject("system", "secret", silent=True)
    guest = await viewer(chats, since=-1)
    page = await next_of(guest, "page")
    assert (page["reset"], says(page)) == (True, ["shown"])
    assert await messages.feed.since(-1) is None


async def test_a_slow_reader_is_told_that_it_has_missed_changes(chats: MessagesLab) -> None:
    messages = await chats.messages()
    guest = await viewer(chats)
    since = (await next_of(guest, "page"))["revision"]
    guest.transport.is_backed_up = True
    for number in range(3):
        await messages.inject("user", f"{number}")
    assert guest.frames == []
    guest.transport.catch_up()
    assert guest.frames == [{"type": "part", "part": "messages", "revision": since + 3, "op": "missed"}]
    await messages.inject("user", "3")
    assert [each["message"]["content"] for each in guest.frames] == ["3"]
    guest.send("open", part="messages", since=since)
    assert says(await next_of(guest, "page")) == ["0", "1", "2", "3"]


async def test_a_slow_reader_gets_the_state_before_it_is_told_what_it_has_missed(chats: MessagesLab) -> None:
    thread = await chats.thread()
    guest = await viewer(chats)
    await next_of(guest, "page")
    guest.transport.is_backed_up = True
    await thread.set_state({"count": 1})
    await thread.messages.inject("user", "a")
    guest.transport.catch_up()
    assert [each["type"] for each in guest.frames] == ["changes", "part"]


async def test_after_close_nothing_more_is_told(chats: MessagesLab) -> None:
    messages = await chats.messages()
    guest, other = await viewer(chats), await viewer(chats, "bob")
    await next_of(guest, "page")
    await next_of(other, "page")
    guest.send("close", part="messages")
    await messages.inject("user", "a")
    assert guest.frames == []
    assert [each["op"] for each in other.frames] == ["insert"]
    other.leave()
    assert messages._writer.viewers == []


class Quiet(Chat):
    """Has messages that clients do not see."""

    kind = "quiet"
    messages = thread_messages.Messages()


@pytest.mark.parametrize("part", ["messages", "values", "nothing", "_actor", "on_start"])
async def test_only_parts_that_are_live_can_be_opened(part: str, troubled: MessagesLab) -> None:
    if part == "messages":
        troubled.app._node.kinds["quiet"] = Quiet._kind
        actor = await troubled.app._node.actor(ThreadKey("quiet", "one"))
    else:
        actor = await chat(troubled)
    guest = await joined(actor, "ada")
    guest.send("open", part=part)
    answer = await next_of(guest, "unopened")
    assert (answer["part"], answer["code"]) == (part, "not_found")


async def test_a_client_without_the_right_opens_nothing_and_a_readonly_one_does(troubled: MessagesLab) -> None:
    guest = await joined(await chat(troubled), "ada")
    guest.connection.readonly = True
    guest.send("open", part="messages")
    assert await next_of(guest, "page")
    guest.connection.rights = Rights(may_open=False)
    guest.send("open", part="messages", before=7)
    answer = await next_of(guest, "unopened")
    assert (answer["code"], answer["before"]) == ("forbidden", 7)


async def test_a_client_that_loses_the_right_is_told_once_and_gets_no_more_changes(chats: MessagesLab) -> None:
    messages = await chats.messages()
    guest = await viewer(chats)
    await next_of(guest, "page")
    guest.connection.rights = Rights(may_open=False)
    for number in range(2):
        await messages.inject("user", f"{number}")
    assert [(each["type"], each.get("code")) for each in guest.frames] == [("unopened", "forbidden")]
    assert messages._writer.viewers == []


async def test_a_client_that_loses_the_right_gets_no_page_that_waits(troubled: MessagesLab) -> None:
    await (await troubled.messages()).inject("user", "secret")
    guest = await joined(await chat(troubled), "ada")
    for fields in ({}, {}, {"before": 9}):
        guest.send("open", part="messages", **fields)
    guest.connection.rights = Rights(may_open=False)
    await until(lambda: any(each.get("before") == 9 for each in guest.transport.sent))
    found = [(each["type"], each["code"], each.get("before")) for each in guest.frames]
    assert found == [("unopened", "forbidden", None), ("unopened", "forbidden", 9)]


async def test_pages_are_read_one_at_a_time_and_only_some_may_wait(troubled: MessagesLab) -> None:
    guest = await joined(await chat(troubled), "ada")
    for _ in range(12):
        guest.send("open", part="messages", before=9)
    await until(lambda: sum(each["type"] == "page" for each in guest.transport.sent) == opened._WAITING)
    refused = [each for each in guest.transport.sent if each["type"] == "unopened"]
    assert len(refused) == 12 - opened._WAITING
    assert {(each["code"], each["retry_after"]) for each in refused} == {("rate_limited", 1.0)}


@pytest.mark.parametrize(
    ("error", "pause"), [(StoreError("busy"), 1.0), (Unavailable("stopping"), 1.0), (CorruptThread("damaged"), None)]
)
async def test_a_page_that_cannot_be_read_is_asked_for_again_unless_it_is_damaged(
    error: PlaitError, pause: float | None, troubled: MessagesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = await joined(await chat(troubled), "ada")
    await (await troubled.messages()).inject("system", "There is something to read.")

    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(troubled.store, "records", fail)
    guest.send("open", part="messages")
    answer = await next_of(guest, "unopened")
    assert (answer["code"], answer.get("retry_after")) == (error.code, pause)


async def test_a_page_has_no_message_that_could_not_be_stored(troubled: MessagesLab) -> None:
    async def nothing(_: Context[Chat]) -> None:
        """Take nothing."""

    troubled.work = nothing
    messages, store = await troubled.messages(), troubled.store
    guest = await joined(await chat(troubled), "ada")
    store.is_held = True
    kept = messages.queue("kept")
    guest.send("open", part="messages")
    await until(lambda: store.waiting)
    lost: list[Any] = []
    # It is queued between the two waits of the page, for the state and for the history.
    (await chat(troubled)).state.after(lambda _: lost.append(messages.queue("lost")))
    store.resume(1)
    await kept
    await until(lambda: lost and store.waiting)
    store.fail_next()
    store.resume()
    with pytest.raises(StoreError):
        await lost[0]
    assert says(await next_of(guest, "page")) == ["kept"]


async def test_a_socket_that_is_closed_while_a_page_is_read_leaves_nothing(chats: MessagesLab) -> None:
    messages = await chats.messages()
    guest = await viewer(chats)
    guest.leave()
    await until(lambda: not messages._writer.viewers)
    await messages.inject("user", "a")
    assert guest.frames == [None]
