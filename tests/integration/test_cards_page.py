"""The page of the card game: each person sees the own hand, and the server sends no page the cards of another one."""

import json
import re
from collections.abc import Sequence
from typing import Literal

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect
from tests.integration.browser import Brake, Demo
from tests.integration.builds import CLIENT, Builds
from tests.integration.test_pages import check_width
from tests.integration.test_pages_accessible import FINDINGS
from tests.schedules import in_soak

PATH = "cards/"
CARD = re.compile("(?:10|[789JQKA])[♣♦♥♠]")
HEARTS = "#suits [value='♥']"
# A game has about twenty turns; one that goes on and on is a fault.
MOST_TURNS = 300


class Tap(Brake):
    """Keeps all that the server has sent to a page."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[str] = []

    def route(self, page: WebSocketRoute) -> None:
        server = page.connect_to_server()
        page.on_message(server.send)

        def receive(frame: str | bytes) -> None:
            self.frames.append(frame if isinstance(frame, str) else frame.decode())
            page.send(frame)

        server.on_message(receive)


class Person:
    """Someone with a page, the cards that the person may know, and what the page has received."""

    def __init__(self, demo: Demo, name: str, *, room: str | None = None, width: int = 1200) -> None:
        self.name = name
        self.tap = Tap()
        self.known = set[str]()
        self.page = demo.open(PATH, room=room, width=width, touch=width < 600, brake=self.tap)
        self.turn = self.page.locator("#turn")
        # A click waits until its card has come to rest.
        self.page.emulate_media(reduced_motion="reduce")
        expect(self.page.locator(".below")).to_contain_text("you")
        self.page.fill("#name", name)
        self.page.press("#name", "Enter")

    def sit(self) -> None:
        self.page.click("#sit")
        expect(self.page.locator("#leave")).to_be_visible()

    def hand(self) -> list[str]:
        """Return the own cards, as the page shows them."""
        return read_cards(self.page, "#hand .card")

    def note_shown(self) -> None:
        """Add the cards that lie on the pile, and the own ones, to those that the person may know."""
        self.known.update(self.hand(), read_cards(self.page, "#pile .card"))

    def check_frames(self) -> None:
        """Compare the cards in what the page has received so far with those that the person may know."""
        self.note_shown()
        told = find_cards(self.tap.frames)
        assert told == self.known, f"{self.name} was sent {sorted(told ^ self.known)}"

    def move(self) -> None:
        """Play the first card that fits, or draw one."""
        card = self.page.locator("#hand .fits")
        if card.count() == 0:
            self.page.click("#deck")
            return
        is_eight = (card.first.get_attribute("data-card") or "").startswith("8")
        is_last = len(self.hand()) == 1
        card.first.click()
        if is_eight and not is_last:
            self.page.click(HEARTS)


def read_cards(page: Page, selector: str) -> list[str]:
    found: list[str] = page.locator(selector).evaluate_all("(cards) => cards.map((card) => card.dataset.card)")
    return found


def find_cards(frames: Sequence[str]) -> set[str]:
    """Return all cards in any text of some frames."""
    return {card for frame in frames for card in CARD.findall(json.dumps(json.loads(frame), ensure_ascii=False))}


def begin(demo: Demo, *names: str, width: int = 1200) -> list[Person]:
    """Seat people; the first one deals, so that the second one has the first turn."""
    players = [Person(demo, name, width=width) for name in names]
    for player in players:
        player.sit()
    expect(players[0].page.locator("[data-player]")).to_have_count(len(players) - 1)
    players[0].page.click("#deal")
    for player in players:
        expect(player.page.locator("#hand .card")).to_have_count(5)
    return players


def expect_turn(people: Sequence[Person], name: str) -> None:
    """Wait until all pages show whose turn it is."""
    for person in people:
        text = "Your turn" if person.name == name else f"{name}\u2019s turn"
        person.page.wait_for_function("(text) => document.querySelector('#turn').textContent === text", arg=text)


def expect_refusal(page: Page, why: str) -> None:
    expect(page.locator(".notice.refused").last).to_have_text(f"The server refused: {why}.")


def play_to_the_end(people: Sequence[Person], first: int) -> Person:
    """Play for the first two people until one of them wins, who is returned; check all frames after each turn."""
    refused = set[str]()
    for turn in range(first, MOST_TURNS):
        player, other = people[turn % 2], people[1 - turn % 2]
        expect_turn(people, player.name)
        for person in people:
            person.check_frames()
        if not refused:
            refused = {find_refusal(player)} - {""}
        if len(player.hand()) == 1 and player.page.locator("#hand .fits").count():
            player.move()
            assert refused, "no card was ever refused"
            for person in people:
                expect(person.turn).to_have_text("You won" if person is player else f"{player.name} won")
            return player
        player.move()
        expect_turn(people, other.name)
    raise AssertionError("the game does not end")


def find_refusal(player: Person) -> str:
    """Play a card that does not fit, if the player has one, and return what the server says."""
    card = player.page.locator("#hand .card:not(.fits)")
    if card.count() == 0:
        return ""
    hand, name = player.hand(), card.first.get_attribute("data-card")
    card.first.click()
    notice = player.page.locator(".notice.refused", has_text=f"The server refused: {name} fits neither")
    expect(notice).to_be_visible()
    assert player.hand() == hand
    return notice.text_content() or ""


def test_two_play_to_the_end_before_a_spectator_and_no_page_is_sent_the_cards_of_another(demo: Demo) -> None:
    people = [*begin(demo, "Ada", "Bob"), Person(demo, "Eve")]
    ada, bob, eve = people
    expect_turn(people, "Bob")
    expect(eve.page.locator("#hand .card")).to_have_count(0)
    for person, backs in ((ada, 5), (bob, 5), (eve, 10)):
        expect(person.page.locator(".fan .card.back")).to_have_count(backs)
        expect(person.page.locator(".fan .card.open")).to_have_count(0)
    ada.page.locator("#hand .card").first.click()
    expect_refusal(ada.page, "it is not your turn")
    hand = ada.hand()
    ada.page.reload()
    expect(ada.page.locator("#hand .card")).to_have_count(5)
    assert ada.hand() == hand
    shown = demo.state("card-game")
    assert (shown["hands"], "deck" in shown) == ({}, False)
    winner = play_to_the_end(people, first=1)
    loser = bob if winner is ada else ada
    cards = loser.hand()
    for person in (winner, eve):
        expect(person.page.locator(".fan .card.open")).to_have_count(len(cards))
        assert sorted(read_cards(person.page, ".fan .card.open")) == sorted(cards)
    assert find_cards(eve.tap.frames) == find_cards([json.dumps(demo.state("card-game"))])
    ada.page.click("#deal")
    expect_turn(people, "Bob")
    expect(eve.page.locator(".fan .card.open")).to_have_count(0)
    expect(eve.page.locator(".fan .card.back")).to_have_count(10)


def test_an_observer_sees_every_hand_and_then_none_again(demo: Demo) -> None:
    ada, bob = begin(demo, "Ada", "Bob")
    eve = Person(demo, "Eve")
    eve.check_frames()
    eve.page.get_by_label("See every hand").check()
    expect(eve.page.locator(".fan .card.open")).to_have_count(10)
    assert sorted(read_cards(eve.page, ".fan .card.open")) == sorted([*ada.hand(), *bob.hand()])
    expect(ada.page.locator("#watchers")).to_have_text("Watching: Eve (sees every hand)")
    expect(ada.page.locator("#observer")).to_be_hidden()
    eve.tap.frames.clear()
    eve.page.get_by_label("See every hand").uncheck()
    expect(eve.page.locator(".fan .card.back")).to_have_count(10)
    expect(ada.page.locator("#watchers")).to_have_text("Watching: Eve")
    eve.check_frames()


def test_a_killed_server_keeps_the_hands_and_a_player_who_has_left_can_be_removed(demo: Demo) -> None:
    ada, bob = begin(demo, "Ada", "Bob")
    hand = bob.hand()
    demo.kill()
    expect(bob.page.locator("#status")).to_have_attribute("data-status", "offline")
    expect(bob.page.locator("#hand .card:disabled")).to_have_count(5)
    demo.start()
    expect(bob.page.locator("#status")).to_have_attribute("data-status", "online")
    assert bob.hand() == hand
    bob.move()
    expect(ada.turn).to_have_text("Your turn")
    bob.page.context.close()
    expect(ada.page.locator(".seat-facts")).to_contain_text("away")
    ada.page.click(".dismiss-player")
    expect(ada.turn).to_have_text("You won")
    expect(ada.page.locator(".seat.free")).to_be_visible()


@pytest.mark.release
def test_cards_are_played_with_the_keyboard_and_the_focus_stays_in_the_hand(demo: Demo) -> None:
    people = begin(demo, "Ada", "Bob")
    for turn in range(1, MOST_TURNS):
        player = people[turn % 2]
        expect_turn(people, player.name)
        cards = player.hand()
        if not (player.page.locator("#hand .fits").count() and len(cards) > 1):
            player.page.focus("#deck")
            player.page.keyboard.press("Enter")
            continue
        card = player.page.locator("#hand .fits").last.get_attribute("data-card") or ""
        player.page.locator("#hand .card").last.focus()
        player.page.keyboard.press("ArrowRight")  # Around to the first card.
        for _ in range(cards.index(card)):
            player.page.keyboard.press("ArrowRight")
        player.page.keyboard.press("Enter")
        if card.startswith("8"):
            player.page.keyboard.press("Escape")
            expect(player.page.locator("#suits")).to_be_hidden()
            assert player.hand() == cards
            player.page.keyboard.press("Enter")
            player.page.locator(HEARTS).press("Enter")
        expect(player.page.locator("#hand .card")).to_have_count(len(cards) - 1)
        focused = player.page.evaluate("document.activeElement.dataset.card")
        rest = [each for each in cards if each != card]
        assert focused == rest[min(cards.index(card), len(rest) - 1)]
        return
    raise AssertionError("no card was played")


@pytest.mark.release
@pytest.mark.parametrize("width", [320, *in_soak([1280], [390])])
def test_four_long_names_do_not_make_a_table_wider_than_its_window(demo: Demo, width: int) -> None:
    people = begin(demo, *(letter * 40 for letter in "ABCD"), width=width)
    watcher = Person(demo, "W" * 40, width=width)
    watcher.page.get_by_label("See every hand").check()
    expect(watcher.page.locator(".fan .card.open")).to_have_count(20)
    for person in (*people, watcher):
        person.page.click("#received summary")
        check_width(person.page, width)


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), *in_soak([1280, "light"])])
def test_axe_finds_no_fault_in_a_game(demo: Demo, builds: Builds, width: int, scheme: Literal["light", "dark"]) -> None:
    axe = builds.install(CLIENT) / "node_modules/axe-core/axe.min.js"
    ada, bob = begin(demo, "Ada", "Bob", width=width)
    for person in (bob, ada):
        page = person.page
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.reload()
        expect(page.locator("#hand .card")).to_have_count(5)
        page.click("#received summary")
        page.add_script_tag(path=axe)
        assert page.evaluate(FINDINGS) == [], f"{person.name} {width} {scheme}"
    bob.page.evaluate("document.querySelector('#suits').showModal()")
    assert bob.page.evaluate(FINDINGS) == []
