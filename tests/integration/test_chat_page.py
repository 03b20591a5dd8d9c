"""The chat's page: messages of two people and of the bot, also without a server or a network."""

import re
from io import BytesIO
from itertools import pairwise
from urllib.parse import urljoin

import httpx
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect
from tests.integration.browser import Brake, Demo, record, recorded
from tests.schedules import in_soak

from plait_client import Refused, connect_sync

PHONE = 390
DESK = 1280
STATUSES = "[...document.querySelectorAll('.message')].map((message) => message.dataset.status).join()"
KNOWN = """async (thread) => {
    const { people } = await (await fetch(thread)).json();
    return ["Ada", "Bob"].every((name) => Object.values(people).some((person) => person.name === name));
}"""
SEND_WITH_KNOWN_KEY = """(thread) => new Promise((resolve) => {
    const socket = new WebSocket(thread, "plait.v1");
    const send = (frame) => socket.send(JSON.stringify(frame));
    socket.onopen = () => send({ type: "join", client: "eve" });
    socket.onmessage = ({ data }) => {
        const { type, items } = JSON.parse(data);
        if (type === "joined") send({ type: "open", part: "messages" });
        const key = items?.[0].metadata.key;
        if (type === "page") send({ type: "send", ref: 1, part: "messages", content: "I do not", key });
        if (type === "sent") resolve();
    };
})"""
IS_AT_END = "innerHeight + scrollY >= document.body.scrollHeight - 1"


# Two people and the bot


def test_what_one_says_the_other_reads_with_the_name(demo: Demo) -> None:
    ada, bob = open_people(demo)
    say(ada, "Good evening, Bob")
    say(bob, "Good evening, Ada")
    for page in (ada, bob):
        expect(bubbles(page)).to_have_text(["Good evening, Bob", "Good evening, Ada"])
        expect(messages(page, "completed")).to_have_count(2)
    expect(names(ada)).to_have_text(["Ada (you)", "Bob"])
    expect(names(bob)).to_have_text(["Ada", "Bob (you)"])
    expect(ada.locator(".mine .bubble")).to_have_text(["Good evening, Bob"])
    rename(ada, "Countess Ada")
    expect(names(bob)).to_have_text(["Countess Ada", "Bob (you)"])


def test_both_see_an_answer_grow_and_the_one_who_comes_in_the_middle_sees_the_rest(demo: Demo) -> None:
    ada, bob = open_people(demo)
    record(bob, "document.querySelector('.bot .bubble')?.textContent ?? ''")
    say(ada, "Count to 60")
    expect(bob.locator(".bot.writing .bubble")).to_contain_text("5,")
    late = demo.open("chat/")
    for page in (ada, bob, late):
        expect(page.locator(".bot .bubble")).to_contain_text(" 59, 60. That is 60.")
        expect(messages(page, "completed")).to_have_count(2)
        expect(page.locator(".writing")).to_have_count(0)
    seen = recorded(bob)
    assert len(set(seen)) > 5
    assert all(after.startswith(before) for before, after in pairwise(seen))
    expect(names(late)).to_have_text(["Ada", "Bot"])


@pytest.mark.release
def test_what_is_said_while_the_bot_writes_waits_and_stands_after_the_answer(demo: Demo) -> None:
    ada, bob = open_people(demo)
    say(ada, "Count to 60")
    expect(bob.locator(".bot.writing .bubble")).to_contain_text("3,")
    say(bob, "Count to 2")
    expect(ada.locator(".waiting .note")).to_have_text("Waiting for the bot")
    for page in (ada, bob):
        expect(messages(page, "completed")).to_have_count(4)
        expect(bubbles(page)).to_have_text(
            ["Count to 60", re.compile("60. That is 60.$"), "Count to 2", "1, 2. That is 2."]
        )


@pytest.mark.release
def test_the_bot_is_silent_between_two_people_until_it_is_called(demo: Demo) -> None:
    ada, bob = open_people(demo)
    say(ada, "Do you like this?")
    say(bob, "I do")
    say(ada, "And you, bot?")
    expect(bob.locator(".bot .bubble")).to_contain_text("I am a bot with a few rules.")
    expect(messages(bob, "completed")).to_have_count(4)


@pytest.mark.release
def test_the_other_is_shown_to_be_typing_and_nothing_of_it_is_kept(demo: Demo) -> None:
    ada, bob = open_people(demo)
    ada.locator("#message").press_sequentially("Hel")
    expect(bob.locator("#typing")).to_have_text("Ada is typing")
    expect(ada.locator("#typing")).to_have_text("")
    height = bob.evaluate("document.querySelector('#composer').offsetHeight")
    ada.fill("#message", "")
    expect(bob.locator("#typing")).to_have_text("")
    assert bob.evaluate("document.querySelector('#composer').offsetHeight") == height
    expect(bob.locator(".message")).to_have_count(0)


@pytest.mark.release
def test_typing_ends_by_itself_and_with_the_message(demo: Demo) -> None:
    ada, bob = open_people(demo)
    ada.locator("#message").press_sequentially("Hel")
    expect(bob.locator("#typing")).to_have_text("Ada is typing")
    expect(bob.locator("#typing")).to_have_text("")
    ada.locator("#message").press_sequentially("lo")
    expect(bob.locator("#typing")).to_have_text("Ada is typing")
    ada.keyboard.press("Enter")
    expect(bob.locator("#typing")).to_have_text("")
    expect(bubbles(bob)).to_have_text(["Hello"])


# Reminders


def test_a_reminder_arrives_for_both(demo: Demo) -> None:
    ada, bob = open_people(demo)
    say(ada, "Remind me in 1 second to look up")
    for page in (ada, bob):
        expect(page.locator(".reminder .bubble")).to_have_text("Ada, your reminder: look up")
        expect(page.locator(".bot:not(.reminder) .bubble")).to_have_text("I will remind you in 1 second, Ada: look up")


@pytest.mark.release
def test_a_reminder_is_sent_once_though_the_server_is_killed_before_it(demo: Demo) -> None:
    page = demo.open("chat/")
    rename(page, "Ada")
    say(page, "Remind me in 2 seconds to look up")
    expect(messages(page, "completed")).to_have_count(2)
    demo.kill()
    expect(page.locator("#status")).to_have_attribute("data-status", "offline")
    demo.start()
    expect(page.locator(".reminder .bubble")).to_have_text("Ada, your reminder: look up")
    say(page, "What are the reminders?")
    expect(bubbles(page).last).to_have_text("There are no reminders.")
    expect(page.locator(".reminder")).to_have_count(1)


@pytest.mark.release
def test_reminders_can_be_cancelled(demo: Demo) -> None:
    page = demo.open("chat/")
    rename(page, "Ada")
    say(page, "Remind me in 3 hours to sleep")
    say(page, "What are the reminders?")
    expect(bubbles(page).last).to_have_text("I keep 1 of them:\n• Ada: sleep")
    say(page, "Cancel the reminders")
    expect(bubbles(page).last).to_have_text("I have cancelled 1 of them.")


# Minutes: a durable task with progress, which waits for a decision

READY = "Ready: read them before you post them."
PROGRESS = "document.querySelector('.card-note')?.textContent ?? ''"


def test_both_see_how_far_the_minutes_are_and_one_of_them_posts_them(demo: Demo) -> None:
    bob = fill(demo, 34)
    ada = demo.open("chat/")
    record(ada, PROGRESS)
    ask_for_minutes(bob)
    for page in (ada, bob):
        expect(card(page).locator(".card-title")).to_have_text("Minutes for Ada")
        expect(card(page).get_by_text(READY)).to_be_visible()
        expect(card(page).locator("progress")).to_be_hidden()
    shown = [text for text in recorded(ada) if "messages read" in text]
    assert shown == [f"{read} of 36 messages read" for read in (0, 10, 20, 30)]
    with ada.expect_popup() as popup:
        card(ada).get_by_role("link", name="Read").click()
    popup.value.close()
    card(ada).get_by_role("button", name="Post").click()
    for page in (ada, bob):
        expect(card(page)).to_have_count(0)
        expect(page.locator(".bot .bubble").last).to_contain_text("Ada, here are the minutes;")
        expect(page.locator(".attached a")).to_have_text(["minutes.md"])
    assert read_minutes(ada)[:4] == ["# Minutes", "", "- **Ada**: Number 0", "- **Ada**: Number 1"]


@pytest.mark.release
@pytest.mark.parametrize("moment", ["while they are written", *in_soak(["while they wait"])])
def test_the_minutes_go_on_though_the_server_is_killed(demo: Demo, moment: str) -> None:
    bob = fill(demo, 34)
    record(bob, PROGRESS)
    ask_for_minutes(bob)
    # A note is shown for a third of a second, which may lie between two looks of a test.
    note = "messages read" if moment == "while they are written" else READY
    bob.wait_for_function("(note) => recorded.some((text) => text.includes(note))", arg=note)
    demo.kill()
    demo.start()
    expect(card(bob).get_by_text(READY)).to_be_visible()
    card(bob).get_by_role("button", name="Post").click()
    expect(bob.locator(".attached a")).to_have_text(["minutes.md"])
    expect(card(bob)).to_have_count(0)
    expect(bob.get_by_text("here are the minutes")).to_have_count(1)
    assert [line for line in read_minutes(bob) if "Number" in line] == [f"- **Ada**: Number {n}" for n in range(34)]


@pytest.mark.release
def test_minutes_can_be_stopped_and_discarded_and_nothing_is_posted(demo: Demo) -> None:
    bob = fill(demo, 34)
    ask_for_minutes(bob)
    card(bob).get_by_role("button", name="Stop").click()
    expect(card(bob)).to_have_count(0)
    expect(bob.locator("#notices")).to_contain_text("The minutes were stopped.")
    ask_for_minutes(bob)
    card(bob).get_by_role("button", name="Discard").click()
    expect(card(bob)).to_have_count(0)
    expect(bob.locator(".bot .bubble").last).to_contain_text("has discarded the minutes, Ada.")
    expect(bob.locator(".attached a")).to_have_count(0)


@pytest.mark.release
def test_a_page_that_comes_later_shows_the_minutes_that_wait(demo: Demo) -> None:
    ada, bob = open_people(demo)
    say(ada, "Good evening")
    ask_for_minutes(ada)
    expect(card(bob).get_by_text(READY)).to_be_visible()
    late = demo.open("chat/", width=PHONE, touch=True)
    expect(card(late).get_by_role("button", name="Post")).to_be_visible()
    assert late.evaluate("document.documentElement.scrollWidth <= innerWidth")
    late.reload()
    expect(card(late).get_by_role("button", name="Post")).to_be_visible()


# Outages


def test_history_and_an_answer_under_way_survive_a_killed_server(demo: Demo) -> None:
    ada, bob = open_people(demo)
    say(ada, "Tell us a story")
    expect(messages(bob, "completed")).to_have_count(2)
    say(bob, "Count to 80")
    expect(ada.locator(".bot.writing .bubble")).to_contain_text("5,")
    demo.kill()
    for page in (ada, bob):
        expect(page.locator("#status")).to_have_attribute("data-status", "offline")
    demo.start()
    for page in (ada, bob):
        expect(bubbles(page).last).to_contain_text(" 80. That is 80.")
        expect(messages(page, "completed")).to_have_count(4)
        # What was cut off is replaced by the answer.
        expect(page.locator(".message")).to_have_count(4)
    late = demo.open("chat/")
    expect(late.locator(".message")).to_have_count(4)
    assert texts(late) == texts(ada) == texts(bob)
    expect(names(late)).to_have_text(["Ada", "Bot", "Bob", "Bot"])


def test_a_message_that_is_sent_offline_arrives_once(demo: Demo) -> None:
    ada, bob = open_people(demo)
    demo.cut_off(ada)
    expect(ada.locator("#status")).to_have_attribute("data-status", "offline")
    say(ada, "I am in a tunnel")
    say(ada, "Count to 2")
    expect(messages(ada, "sending").locator(".note")).to_have_text(["Sent when you are online again"] * 2)
    demo.connect(ada)
    for page in (ada, bob):
        expect(messages(page, "completed")).to_have_count(3)
        expect(bubbles(page)).to_have_text(["I am in a tunnel", "Count to 2", "1, 2. That is 2."])
    expect(names(bob).first).to_have_text("Ada")


@pytest.mark.release
def test_a_message_whose_answer_is_lost_with_the_server_arrives_once(demo: Demo) -> None:
    brake = Brake()
    ada = demo.open("chat/", brake=brake)
    bob = demo.open("chat/")
    rename(bob, "Bob")
    say(bob, "Are you there?")
    expect(bubbles(ada)).to_have_text(["Are you there?"])
    brake.hold()
    say(ada, "Still here")
    expect(bubbles(bob)).to_have_text(["Are you there?", "Still here"])
    expect(messages(ada, "sending")).to_have_count(1)
    demo.kill()
    demo.start()
    brake.release()
    for page in (ada, bob):
        expect(page.locator("#status")).to_have_attribute("data-status", "online")
        expect(messages(page, "completed")).to_have_count(2)
        expect(bubbles(page)).to_have_text(["Are you there?", "Still here"])


@pytest.mark.release
def test_a_message_for_which_the_bot_fails_is_given_up_and_the_next_is_answered(demo: Demo) -> None:
    ada, bob = open_people(demo)
    say(ada, "Fail, bot!")
    expect(bob.locator(".waiting")).to_have_count(1)
    say(ada, "Count to 2")
    for page in (ada, bob):
        expect(messages(page, "failed").locator(".note")).to_have_text("Given up: the bot has failed")
        expect(bubbles(page).last).to_have_text("1, 2. That is 2.")


# The page


@pytest.mark.release
@pytest.mark.parametrize("width", [PHONE, *in_soak([DESK])])
def test_older_messages_come_when_they_are_scrolled_to_and_nothing_jumps(demo: Demo, width: int) -> None:
    bob = fill(demo, 130)
    page = demo.open("chat/", width=width, touch=width == PHONE)
    expect(bubbles(page).last).to_have_text("Number 129")
    expect(page.locator(".message")).to_have_count(50)
    page.wait_for_function(IS_AT_END)
    for count in (100, 130):
        first = page.locator(".message").first
        first.evaluate("(message) => scrollTo({ top: message.offsetTop - 100 })")
        expect(page.locator(".message")).to_have_count(count)
    first = page.get_by_text("Number 30", exact=True)
    expect(bubbles(page).first).to_have_text("Number 0")
    expect(page.locator("#earlier")).to_be_hidden()
    first.evaluate("(bubble) => scrollTo({ top: bubble.getBoundingClientRect().top + scrollY - 200 })")
    top = first.evaluate("(bubble) => bubble.getBoundingClientRect().top")
    say(bob, "One more")
    expect(bubbles(page).last).to_have_text("One more")
    assert first.evaluate("(bubble) => bubble.getBoundingClientRect().top") == pytest.approx(top, abs=1)
    page.click("#latest")
    page.wait_for_function(IS_AT_END)


def test_a_page_that_loads_older_messages_keeps_its_place(demo: Demo) -> None:
    fill(demo, 70)
    brake = Brake()
    page = demo.open("chat/", brake=brake)
    expect(page.locator(".message")).to_have_count(50)
    brake.hold()
    page.evaluate("scrollTo({ top: 0 })")
    expect(page.locator("#earlier button")).to_have_attribute("aria-busy", "true")
    first = page.get_by_text("Number 20", exact=True)
    top = first.evaluate("(bubble) => bubble.getBoundingClientRect().top")
    brake.release()
    expect(page.locator(".message")).to_have_count(70)
    assert first.evaluate("(bubble) => bubble.getBoundingClientRect().top") == pytest.approx(top, abs=1)


@pytest.mark.release
def test_a_message_moves_nothing_when_it_is_stored(demo: Demo) -> None:
    ada, bob = open_people(demo)
    record(bob, STATUSES)
    record(ada, "[document.querySelector('.message')?.offsetHeight ?? 0, document.body.scrollHeight]")
    say(ada, "Hello, Bob")
    expect(messages(ada, "completed")).to_have_count(1)
    expect(messages(bob, "completed")).to_have_count(1)
    assert len({height for height, _ in recorded(ada) if height}) == 1
    assert set(recorded(bob)) <= {"", "pending", "completed"}


@pytest.mark.release
def test_the_keyboard_is_enough_and_messages_are_a_log(demo: Demo) -> None:
    page = demo.open("chat/")
    expect(page.get_by_label("Your message")).to_be_focused()
    page.keyboard.type("Count to")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("Count to 3")
    page.keyboard.press("Enter")
    expect(page.get_by_role("log", name="Messages")).to_contain_text("1, 2, 3. That is 3.")
    expect(bubbles(page).first).to_have_text("Count to\nCount to 3", use_inner_text=True)
    expect(page.locator(".message").last).to_have_attribute("aria-busy", "false")


def test_a_page_can_put_no_words_in_the_mouth_of_others(demo: Demo) -> None:
    page, _ = open_people(demo)
    url = page.url.partition("/chat/")[0].replace("http", "ws") + f"/threads/chat/{demo.room}"
    with connect_sync(url) as room, pytest.raises(Refused, match="only the server changes the list of people"):
        room.set({"people": {id: {**person, "name": "Bot"} for id, person in room.state["people"].items()}})


def test_a_message_with_the_key_of_another_replaces_nothing(demo: Demo) -> None:
    ada, bob = open_people(demo)
    say(ada, "I agree")
    expect(messages(bob, "completed")).to_have_count(1)
    bob.evaluate(SEND_WITH_KNOWN_KEY, f"/threads/chat/{demo.room}")
    say(bob, "Me too")
    for page in (ada, bob):
        expect(bubbles(page)).to_have_text(["I agree", "I do not", "Me too"])


@pytest.mark.release
def test_a_long_message_does_not_stop_the_bot(demo: Demo) -> None:
    page = demo.open("chat/")
    page.evaluate("document.querySelector('#message').value = 'cancel '.repeat(30_000)")
    page.click("#send")
    say(page, "Count to 2")
    expect(bubbles(page).last).to_have_text("1, 2. That is 2.")


def test_markup_in_a_message_is_text(demo: Demo) -> None:
    page = demo.open("chat/")
    say(page, "<img src=x onerror=alert(1)> **why**")
    expect(bubbles(page).first).to_have_text("<img src=x onerror=alert(1)> **why**")


# Helpers


# Files

DROP = """async ([bytes, name, type]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([new Uint8Array(bytes)], name, { type }));
    const fire = (kind) => document.body.dispatchEvent(
        new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer: transfer }),
    );
    fire("dragover");
    const wasShown = !document.querySelector("#drop").hidden;
    fire("drop");
    return wasShown && document.querySelector("#drop").hidden;
}"""
IS_LOADED = "[...document.querySelectorAll('.attached img')].every((img) => img.complete && img.naturalWidth > 0)"


def make_picture() -> bytes:
    data = BytesIO()
    picture = Image.linear_gradient("L").resize((640, 360))
    Image.merge("RGB", (picture, picture.rotate(180), picture)).save(data, "PNG")
    return data.getvalue()


@pytest.mark.parametrize("width", [PHONE, *in_soak([DESK])])
def test_a_picture_that_is_dropped_in_is_seen_by_both(demo: Demo, width: int) -> None:
    ada, bob = demo.open("chat/", width=width), demo.open("chat/")
    assert ada.evaluate(DROP, [[*make_picture()], "sky above.png", "image/png"])
    expect(ada.locator("#attachments .file-name")).to_have_text("sky above.png")
    expect(ada.locator("#attachments progress")).to_be_hidden()
    say(ada, "Look at this")
    for page in (ada, bob):
        picture = page.locator(".attached img")
        expect(picture).to_have_attribute("alt", "sky above.png")
        page.wait_for_function(IS_LOADED)
        box = picture.bounding_box()
        assert box is not None
        assert box["width"] / box["height"] == pytest.approx(640 / 360, rel=0.02)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(ada.locator("#attachments li")).to_have_count(0)
    ada.reload()
    expect(ada.locator(".attached img")).to_have_count(1)
    ada.wait_for_function(IS_LOADED)


@pytest.mark.release
def test_files_are_chosen_taken_away_and_sent_without_a_text(demo: Demo) -> None:
    ada, bob = open_people(demo)
    ada.set_input_files("#files", [{"name": n, "mimeType": "text/plain", "buffer": b"x"} for n in ("a.txt", "b.txt")])
    expect(ada.locator("#attachments li")).to_have_count(2)
    ada.locator("#attachments li", has_text="a.txt").get_by_role("button").click()
    expect(ada.locator("#attachments li")).to_have_count(1)
    ada.locator("#send").click()
    expect(bob.locator(".attached a")).to_have_text(["b.txt"])
    expect(bob.locator(".message:not(.bot) .bubble")).to_be_hidden()
    with bob.expect_download() as download:
        bob.locator(".attached a").click()
    assert download.value.suggested_filename == "b.txt"


def test_an_attachment_from_elsewhere_is_not_shown(demo: Demo) -> None:
    ada = demo.open("chat/")
    url = ada.url.partition("/chat/")[0].replace("http", "ws") + f"/threads/chat/{demo.room}"
    with connect_sync(url) as room:
        for path in ("attachments/../../../counter", "other/x.png", 7):
            room.messages.send("look", attachments=[{"path": path, "mime": "image/png"}])
        room.messages.send("last", attachments=[{"path": "attachments/x.txt", "name": "<b>"}])
    expect(ada.locator(".attached a")).to_have_text(["<b>"])
    expect(ada.locator(".attached img")).to_have_count(0)


def open_people(demo: Demo) -> tuple[Page, Page]:
    """Open the pages of Ada and Bob, who both are known to the bot."""
    ada, bob = demo.open_two("chat/")
    for page, name in ((ada, "Ada"), (bob, "Bob")):
        rename(page, name)
    ada.wait_for_function(KNOWN, arg=f"/threads/chat/{demo.room}")
    return ada, bob


def fill(demo: Demo, count: int) -> Page:
    """Have a room with many messages, to which the bot has nothing to say."""
    page, _ = open_people(demo)
    page.evaluate(
        """(count) => {
            for (const number of Array(count).keys()) {
                document.querySelector("#message").value = `Number ${number}`;
                document.querySelector("#send").click();
            }
        }""",
        count,
    )
    expect(messages(page, "completed")).to_have_count(count)
    return page


def say(page: Page, content: str) -> None:
    page.fill("#message", content)
    page.click("#send")


def ask_for_minutes(page: Page) -> None:
    say(page, "Write the minutes, bot")
    expect(card(page)).to_have_count(1)


def read_minutes(page: Page) -> list[str]:
    """Return the lines of the file that the bot has posted."""
    return httpx.get(urljoin(page.url, page.locator(".attached a").get_attribute("href") or "")).text.splitlines()


def card(page: Page) -> Locator:
    return page.locator("#minutes .card")


def rename(page: Page, name: str) -> None:
    page.fill("#name", name)
    page.press("#name", "Enter")


def messages(page: Page, status: str) -> Locator:
    return page.locator(f'.message[data-status="{status}"]')


def bubbles(page: Page) -> Locator:
    return page.locator(".message .bubble")


def names(page: Page) -> Locator:
    """The names that are shown: messages of one person in a row have one."""
    return page.locator(".message:not(.grouped) .who span")


def texts(page: Page) -> list[str]:
    return bubbles(page).all_text_contents()
