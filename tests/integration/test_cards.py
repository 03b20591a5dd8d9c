"""The rules of the example with cards, and what each reader sees of a table."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from examples.cards import CARDS, HAND, CardGame, Game, Move, Player, authenticate, count, deal, draw, play, remove, sit
from tests.cases import each_case
from tests.server.rooms import make_request

from plait import Plait, Principal, Reject
from plait.testing import Served, serve
from plait_client import CallError, Refused

ADA, BOB, EVE = (Principal(id) for id in ("ada", "bob", "eve"))
OBSERVER = Principal("olga", groups={"observers"})


def make_game(**changes: Any) -> Game:
    """Return a game of Ada, whose turn it is, and Bob."""
    game = {
        "players": (Player("ada", "Ada"), Player("bob", "Bob")),
        "status": "playing",
        "turn": "ada",
        "pile": ("9♣",),
        "suit": "♣",
        "hands": {"ada": ("K♣", "9♥", "8♥", "A♦"), "bob": ("7♣", "Q♠")},
        "deck": ("J♦", "10♠"),
    }
    return count(Game(**(game | changes)))


# Rules


def test_a_dealt_game_has_each_card_once_and_begins_after_the_dealer() -> None:
    game = deal(make_game(status="waiting"), "ada", CARDS[::-1])
    dealt = [*game.deck, *game.pile, *game.hands["ada"], *game.hands["bob"]]
    assert sorted(dealt) == sorted(CARDS)
    assert [player.cards for player in game.players] == [HAND, HAND]
    assert game.deck_size == len(game.deck) == len(CARDS) - 2 * HAND - 1
    assert (game.status, game.turn, game.pile, game.suit) == ("playing", "bob", CARDS[:1], "♣")


@each_case(
    ("card", "named", "suit"),
    [
        ("K♣", None, "♣"),
        ("9♥", None, "♥"),
        ("8♥", "♠", "♠"),
    ],
)
def test_a_card_that_fits_is_played_and_the_turn_goes_on(card: str, named: Any, suit: str) -> None:
    game = play(make_game(), "ada", card, named)
    assert card not in game.hands["ada"]
    assert (game.pile, game.suit, game.turn) == (("9♣", card), suit, "bob")
    assert game.players[0].cards == 3
    assert game.last == Move("ada", card, named)


@each_case(
    ("you", "card", "suit", "why"),
    [
        ("ada", "A♦", None, "A♦ fits neither ♣ nor 9"),
        ("ada", "7♣", None, "you do not have that card"),
        ("ada", "8♥", None, "name a suit with an eight"),
        ("ada", "K♣", "♥", "only an eight names a suit"),
        ("bob", "7♣", None, "it is not your turn"),
        ("eve", "K♣", None, "only a player at this table can do that"),
    ],
)
def test_a_card_is_refused(you: str, card: str, suit: Any, why: str) -> None:
    with pytest.raises(Reject, match=f"^{why}$"):
        play(make_game(), you, card, suit)


def test_the_suit_that_was_named_must_be_followed() -> None:
    game = make_game(pile=("8♣",), suit="♥")
    with pytest.raises(Reject, match="K♣ fits neither ♥ nor 8"):
        play(game, "ada", "K♣", None)
    assert play(game, "ada", "9♥", None).suit == "♥"


def test_the_last_card_wins_even_an_eight_without_a_suit() -> None:
    players = (Player("ada", "Ada", wins=1), Player("bob", "Bob", wins=1))
    game = play(make_game(players=players, hands={"ada": ("8♥",), "bob": ("Q♠",)}), "ada", "8♥", None)
    assert (game.status, game.winner, game.turn) == ("finished", "ada", None)
    assert [player.wins for player in game.players] == [2, 1]
    with pytest.raises(Reject, match="the game is not running"):
        play(game, "bob", "Q♠", None)


def test_who_draws_gets_the_next_card_and_ends_the_turn() -> None:
    game = draw(make_game(), "ada", reversed_cards)
    assert game.hands["ada"][-1] == "10♠"
    assert (game.deck, game.deck_size, game.turn, game.last) == (("J♦",), 1, "bob", Move("ada"))
    with pytest.raises(Reject, match="it is not your turn"):
        draw(game, "ada", reversed_cards)


def test_the_played_cards_become_the_deck_when_it_is_empty() -> None:
    game = draw(make_game(deck=(), pile=("7♦", "Q♦", "9♣")), "ada", reversed_cards)
    assert (game.deck, game.pile) == (("Q♦",), ("9♣",))
    assert game.hands["ada"][-1] == "7♦"


def test_a_turn_can_be_passed_when_no_card_is_left_to_draw() -> None:
    game = draw(make_game(deck=()), "ada", reversed_cards)
    assert (game.turn, len(game.hands["ada"]), game.last) == ("bob", 4, Move("ada", has_passed=True))


def test_the_cards_of_a_player_who_leaves_go_below_the_deck_and_the_others_go_on() -> None:
    three = (*make_game().players, Player("eve", "Eve"))
    game = remove(make_game(players=three, hands={**make_game().hands, "eve": ("7♥",)}), "ada")
    assert (game.turn, game.status, set(game.hands)) == ("bob", "playing", {"bob", "eve"})
    assert game.deck == ("K♣", "9♥", "8♥", "A♦", "J♦", "10♠")
    assert game.deck_size == 6
    game = remove(game, "eve")
    assert (game.status, game.winner, game.turn) == ("finished", "bob", None)
    assert remove(game, "bob") == Game()


def test_seats_are_taken_before_a_game() -> None:
    game = Game()
    for id in "abcd":
        game = sit(game, id, id.upper())
    assert [player.name for player in game.players] == ["A", "B", "C", "D"]
    assert sit(game, "a", "Ann").players[0] == Player("a", "Ann")
    with pytest.raises(Reject, match="all seats are taken"):
        sit(game, "e", "E")
    with pytest.raises(Reject, match="a game is running"):
        sit(make_game(), "eve", "Eve")


@each_case(
    ("game", "why"),
    [
        (make_game(), "the game is not over"),
        (make_game(players=(Player("ada", "Ada"),), status="waiting"), "a game needs two players"),
        (
            make_game(players=(Player("bob", "Bob"),) * 2, status="waiting"),
            "only a player at this table",
        ),
    ],
)
def test_cards_are_not_dealt(game: Game, why: str) -> None:
    with pytest.raises(Reject, match=why):
        deal(game, "ada", CARDS)


def reversed_cards(cards: Any) -> Any:
    """Return the cards in an order that a test knows."""
    return cards[::-1]


# Readers


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Run the tests on asyncio's own loop."""
    return "asyncio", {"use_uvloop": False}


@pytest.fixture
async def t(anyio_backend: object) -> AsyncIterator[Served]:
    async with serve(Plait(CardGame, store="memory://", authenticate=authenticate)) as t:
        await t.app.thread(CardGame, "x").set_state(make_game())
        yield t


async def test_players_see_their_own_hands_spectators_none_and_observers_all(t: Served) -> None:
    async with (
        t.connect(CardGame, "x", principal=ADA) as ada,
        t.connect(CardGame, "x", principal=EVE) as eve,
        t.connect(CardGame, "x", principal=OBSERVER) as olga,
    ):
        game = make_game()
        assert (ada.state.hands, ada.state.deck) == ({"ada": game.hands["ada"]}, ())
        assert (eve.state.hands, eve.state.deck) == ({}, ())
        assert olga.state == game
        for room in (ada, eve):
            assert room.state.players == game.players
            assert (room.state.pile, room.state.suit, room.state.deck_size) == (game.pile, game.suit, 2)
        await ada.call(CardGame.draw)
        await t.clock.settle()
        assert ada.state.hands["ada"][-1] == "10♠"
        assert (eve.state.hands, eve.state.deck, eve.state.deck_size) == ({}, (), 1)
        assert eve.state.players[0].cards == 5
        assert olga.state.deck == ("J♦",)


async def test_an_observer_who_plays_sees_only_the_own_hand(t: Served) -> None:
    async with t.connect(CardGame, "x", principal=Principal("ada", groups={"observers"})) as ada:
        assert ada.state.hands == {"ada": make_game().hands["ada"]}
        assert ada.state.deck == ()


async def test_everybody_sees_everything_when_the_game_is_over_until_the_next_deal(t: Served) -> None:
    await t.app.thread(CardGame, "x").set_state(make_game(hands={"ada": ("K♣",), "bob": ("Q♠", "7♥")}))
    async with t.connect(CardGame, "x", principal=ADA) as ada, t.connect(CardGame, "x", principal=EVE) as eve:
        assert (eve.state.hands, eve.state.deck) == ({}, ())
        await ada.call(CardGame.play, "K♣")
        await t.clock.settle()
        for room in (ada, eve):
            assert room.state.hands == {"ada": (), "bob": ("Q♠", "7♥")}
            assert room.state.deck == make_game().deck
        await ada.call(CardGame.deal)
        await t.clock.settle()
        assert (eve.state.hands, eve.state.deck, eve.state.deck_size) == ({}, (), 21)
        assert list(ada.state.hands) == ["ada"]


async def test_no_client_changes_the_state_itself(t: Served) -> None:
    async with t.connect(CardGame, "x", principal=ADA) as ada:
        for path, value in (("/hands/ada", []), ("/turn", "bob"), ("/deck", ["8♠"])):
            with pytest.raises(Refused) as refused:
                await ada.update(path, value)
            assert refused.value.code == "forbidden"


async def test_a_player_who_is_away_can_be_removed_and_one_who_is_here_cannot(t: Served) -> None:
    async with t.connect(CardGame, "x", principal=ADA) as ada:
        async with t.connect(CardGame, "x", principal=BOB):
            with pytest.raises(CallError, match="that player is here"):
                await ada.call(CardGame.dismiss, "bob")
        await t.clock.settle()
        async with t.connect(CardGame, "x", principal=EVE) as eve:
            with pytest.raises(CallError, match="only a player at this table can do that"):
                await eve.call(CardGame.dismiss, "bob")
        await ada.call(CardGame.dismiss, "bob")
        assert [player.id for player in ada.state.players] == ["ada"]
        with pytest.raises(CallError, match="that player has left"):
            await ada.call(CardGame.dismiss, "bob")


def test_a_key_is_a_person_and_its_group_is_named_by_the_page() -> None:
    one, observer, other, guest = (
        authenticate(make_request(authorization=f"Bearer {token}")) for token in ("a", "a.observers", "b", "")
    )
    assert one.id == observer.id
    assert len({one.id, other.id, guest.id}) == 3
    assert (one.groups, observer.groups) == (frozenset(), {"observers"})
    assert guest == Principal("guest")
