"""The assistant's page: answers that are written while several people watch, and how they end."""

import signal
from itertools import pairwise
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect
from tests.integration.browser import Demo, record, recorded
from tests.schedules import in_soak

from plait_client import Refused, connect_sync

LONG = "Count to 1000"
PHONE = 390


# Answers


def test_all_who_watch_see_an_answer_as_it_is_written(demo: Demo) -> None:
    one, other = demo.open_two("assistant/")
    rename(one, "Ada Lovelace")
    record(other, "document.querySelector('.answer-text')?.textContent ?? ''")
    ask(one, "Count to 5")
    for page in (one, other):
        expect(turns(page, "done")).to_have_count(1)
        expect(page.locator(".answer-text")).to_have_text("1, 2, 3, 4, 5. That is 5.")
    expect(other.locator(".who")).to_have_text("ALAda Lovelace")
    expect(one.locator(".who")).to_have_text("ALAda Lovelace (you)")
    seen = [text.strip() for text in recorded(other)]
    assert len(set(seen)) > 2
    assert all(after.startswith(before) for before, after in pairwise(seen))
    (turn,) = state(demo)
    assert (turn["answer"], turn["name"]) == ("1, 2, 3, 4, 5. That is 5.", "Ada Lovelace")


def test_stop_by_anybody_keeps_what_has_come_and_lets_the_next_answer_begin(demo: Demo) -> None:
    one, other = demo.open_two("assistant/")
    rename(other, "Grace Hopper")
    ask(one, LONG)
    ask(one, "What is 12 × 7?")
    expect(answer(other, 0)).to_contain_text("1, 2, 3, 4, 5,")
    other.click("#stop")
    for page in (one, other):
        expect(turns(page, "stopped").locator(".end span")).to_have_text("Stopped by Grace Hopper")
        expect(answer(page, 1)).to_have_text("12 × 7 is 84.")
        expect(page.locator("#stop")).to_be_hidden()
    stopped, done = state(demo)
    numbers = stopped["answer"].replace(" ", "").rstrip(",").split(",")
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert 5 <= len(numbers) < 1000
    assert (stopped["status"], done["status"]) == ("stopped", "done")


@pytest.mark.release
def test_escape_stops_an_answer_and_it_can_be_asked_for_again(demo: Demo) -> None:
    page = demo.open("assistant/")
    ask(page, LONG)
    expect(answer(page, 0)).to_contain_text("1,")
    page.keyboard.press("Escape")
    turns(page, "stopped").get_by_role("button", name="Ask again").click()
    expect(turns(page, "answering").locator(".bubble")).to_have_text(LONG)
    page.click("#stop")
    expect(turns(page, "stopped")).to_have_count(2)


def test_what_is_asked_meanwhile_waits_for_its_turn_and_is_answered_in_order(demo: Demo) -> None:
    one, other = demo.open_two("assistant/")
    ask(one, LONG)
    expect(turns(other, "answering")).to_have_count(1)
    ask(other, "Count to 2")
    expect(turns(one, "waiting").locator(".place span")).to_have_text(["Waiting: next"])
    ask(one, "Count to 3")
    for page in (one, other):
        expect(turns(page, "waiting").locator(".bubble")).to_have_text(["Count to 2", "Count to 3"])
        expect(turns(page, "waiting").locator(".place span")).to_have_text(["Waiting: next", "Waiting: 2 before it"])
    record(one, "[...document.querySelectorAll('.turn')].map((turn) => turn.dataset.status).join()")
    other.click("#stop")
    expect(answer(one, 2)).to_have_text("1, 2, 3. That is 3.")
    expect(turns(one, "done")).to_have_count(2)
    assert not any(seen.endswith(("waiting,answering", "waiting,done", "answering,done")) for seen in recorded(one))


@pytest.mark.release
def test_a_question_that_waits_can_be_taken_back_by_who_has_asked_it(demo: Demo) -> None:
    one, other = demo.open_two("assistant/")
    ask(one, LONG)
    expect(turns(one, "answering")).to_have_count(1)
    ask(one, "Count to 2")
    ask(one, "Count to 3")
    for page in (one, other):
        expect(turns(page, "waiting")).to_have_count(2)
    expect(turns(other, "waiting").first.locator(".take-back")).to_be_hidden()
    turns(one, "waiting").first.locator(".take-back").click()
    for page in (one, other):
        expect(turns(page, "waiting").locator(".bubble")).to_have_text(["Count to 3"])
    one.click("#stop")
    expect(turns(one, "done").locator(".answer-text")).to_have_text("1, 2, 3. That is 3.")


# Staying alive


def test_an_answer_goes_on_over_a_reload_and_when_who_asked_has_left(demo: Demo) -> None:
    one, other = demo.open_two("assistant/")
    ask(one, "Count to 60")
    ask(one, "Count to 2")
    expect(answer(one, 0)).to_contain_text("3,")
    one.reload()
    expect(answer(one, 0)).to_contain_text("8,")
    one.context.close()
    expect(answer(other, 1)).to_have_text("1, 2. That is 2.")
    assert state(demo)[0]["answer"].endswith(" 59, 60. That is 60.")
    assert [turn["status"] for turn in state(demo)] == ["done", "done"]


@pytest.mark.parametrize("by", [signal.SIGKILL, *in_soak([signal.SIGTERM])])
def test_a_conversation_survives_the_server_and_says_what_was_cut_off(demo: Demo, by: signal.Signals) -> None:
    one, other = demo.open_two("assistant/")
    ask(one, "My name is Ada.")
    expect(turns(one, "done")).to_have_count(1)
    ask(one, LONG)
    expect(answer(other, 1)).to_contain_text("1, 2, 3, 4, 5,")
    ask(other, "What is 12 * 7?")
    expect(turns(one, "waiting")).to_have_count(1)
    demo.kill(by)
    expect(one.locator("#status")).to_have_attribute("data-status", "offline")
    seen = answer(one, 1).inner_text().strip()
    ask(one, "Who am I?")
    expect(turns(one, "waiting")).to_have_count(2)
    demo.start()
    for page in (one, other):
        expect(turns(page, "cut off").locator(".end span")).to_have_text(
            "Cut off: the server was stopped in the middle"
        )
        expect(answer(page, 2)).to_have_text("12 * 7 is 84.")
        expect(answer(page, 3)).to_have_text("You are Ada.")
    assert answer(one, 1).inner_text().startswith(seen)
    assert [turn["status"] for turn in state(demo)] == ["done", "cut off", "done", "done"]
    one.reload()
    expect(turns(one, "cut off").locator(".bubble")).to_have_text(LONG)


@pytest.mark.release
def test_what_is_asked_offline_is_sent_and_answered_later(demo: Demo) -> None:
    one, other = demo.open_two("assistant/")
    demo.cut_off(one)
    expect(one.locator("#status")).to_have_attribute("data-status", "offline")
    ask(one, "Count to 2")
    expect(turns(one, "waiting")).to_have_count(1)
    demo.connect(one)
    for page in (one, other):
        expect(answer(page, 0)).to_have_text("1, 2. That is 2.")


# The page


@pytest.mark.release
def test_a_reader_who_has_scrolled_up_is_left_there_and_can_go_to_the_latest(demo: Demo) -> None:
    page = demo.open("assistant/", width=PHONE, height=400, touch=True)
    ask(page, "help")
    expect(turns(page, "done")).to_have_count(1)
    page.wait_for_function("innerHeight + scrollY >= document.body.scrollHeight - 1")
    ask(page, LONG)
    expect(answer(page, 1)).to_contain_text("1,")
    page.evaluate("scrollTo({ top: 0 })")
    expect(page.locator("#latest")).to_be_visible()
    expect(answer(page, 1)).to_contain_text("10,")
    assert page.evaluate("scrollY") == 0
    page.click("#latest")
    expect(page.locator("#latest")).to_be_hidden()
    expect(answer(page, 1)).to_contain_text("30,")
    page.wait_for_function("innerHeight + scrollY >= document.body.scrollHeight - 1")
    page.click("#stop")


def test_markup_in_a_question_is_text(demo: Demo) -> None:
    page = demo.open("assistant/")
    ask(page, "<img src=x onerror=alert(1)> **why**")
    expect(page.locator(".bubble")).to_have_text("<img src=x onerror=alert(1)> **why**")
    ask(page, "What did I ask?")
    expect(answer(page, 1)).to_contain_text("<img src=x onerror=alert(1)> why")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"answer": "mine"}, "earlier turns cannot be changed"),
        ({"status": "waiting"}, "earlier turns cannot be changed"),
        (None, "a question can only be taken back while it waits"),
    ],
    ids=["answer", "status", "removal"],
)
def test_a_page_can_put_no_words_in_the_assistants_mouth(demo: Demo, change: dict[str, Any] | None, why: str) -> None:
    page = demo.open("assistant/")
    ask(page, "Count to 2")
    expect(turns(page, "done")).to_have_count(1)
    url = page.url.partition("/assistant/")[0].replace("http", "ws")
    with connect_sync(f"{url}/threads/assistant/{demo.room}") as room:
        (turn,) = room.state["turns"]
        with pytest.raises(Refused, match=why):
            room.set({"turns": [] if change is None else [{**turn, **change}]})
        with pytest.raises(Refused, match="only the assistant can answer"):
            room.set({"turns": [turn, {**turn, "id": "other", "status": "waiting"}]})
    assert state(demo) == [turn]


# Helpers


def ask(page: Page, question: str) -> None:
    page.fill("#message", question)
    page.click("#send")


def rename(page: Page, name: str) -> None:
    page.fill("#name", name)
    page.press("#name", "Enter")


def turns(page: Page, status: str) -> Locator:
    return page.locator(f'.turn[data-status="{status}"]')


def answer(page: Page, number: int) -> Locator:
    return page.locator(".turn").nth(number).locator(".answer-text")


def state(demo: Demo) -> list[Any]:
    found: list[Any] = demo.state("assistant")["turns"]
    return found
