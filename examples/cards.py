"""Crazy Eights: players see their own hands, spectators see none, and observers see everything."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import SystemRandom
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.requests import Request

from plait import Plait, Principal, Reject, Thread, current, rpc

PAGES = Path(__file__).parent / "pages"
SUITS: Final[tuple["Suit", ...]] = ("♣", "♦", "♥", "♠")
CARDS: Final = tuple(f"{rank}{suit}" for suit in SUITS for rank in ("7", "8", "9", "10", "J", "Q", "K", "A"))
HAND: Final = 5
SEATS: Final = 4

Suit = Literal["♣", "♦", "♥", "♠"]
# A rank and a suit, such as "10♥".
Card = Annotated[str, Meta(pattern="^(7|8|9|10|J|Q|K|A)[♣♦♥♠]$")]
Name = Annotated[str, Meta(min_length=1, max_length=40)]
Shuffle = Callable[[Sequence[str]], Sequence[str]]


class Player(Struct, frozen=True):
    """Someone at the table."""

    # The id of the player's principal.
    id: str
    name: Name
    # The size of the player's hand, as the other players do not see the hand.
    cards: int = 0
    wins: int = 0


class Move(Struct, frozen=True):
    """The last thing that happened at the table."""

    by: str
    # The card that was played; None if one was drawn, which only its player sees, or none was left to draw.
    card: Card | None = None
    # The suit that was named with an eight.
    suit: Suit | None = None
    has_passed: bool = False


class Game(Struct, frozen=True):
    """A table. Members that some readers do not see have defaults, so that clients can decode every picture."""

    players: tuple[Player, ...] = ()
    status: Literal["waiting", "playing", "finished"] = "waiting"
    # The ids of the player whose turn it is, and of the one who has won.
    turn: str | None = None
    winner: str | None = None
    # The cards that were played, the last one on top, and the suit that must be followed.
    pile: tuple[Card, ...] = ()
    suit: Suit | None = None
    last: Move | None = None
    deck_size: int = 0
    # The cards of each player, by id; a reader's picture has only those that the reader sees.
    hands: dict[str, tuple[Card, ...]] = {}
    # The cards to draw, the next one last.
    deck: tuple[Card, ...] = ()


class TableCard(Struct, frozen=True):
    """The data of a table in a listing, which everybody may see."""

    players: tuple[Name, ...]
    status: str


TABLE: Final = (
    *("/players/**", "/status", "/turn", "/winner", "/pile/**", "/suit", "/last/**", "/deck_size"),
    "/hands/{user}/**",
)
"""The parts of the state that everybody sees, and the own hand. A member that is added to `Game` is hidden at first."""


class CardGame(Thread[Game]):
    """The server makes all moves. A page calls them, and sees its own part of the state."""

    listed = True
    initial_state = Game()
    can_write = ()

    def can_read(self, state: Game, viewer: Principal | None) -> tuple[str, ...]:
        is_player = viewer is not None and viewer.id in {player.id for player in state.players}
        is_observer = viewer is not None and "observers" in viewer.groups and not is_player
        return ("/**",) if is_observer or state.status == "finished" else TABLE

    def card(self, state: Game) -> TableCard:
        return TableCard(tuple(player.name for player in state.players), state.status)

    @rpc
    def who_am_i(self) -> str:
        """Return the id by which the state names the caller."""
        return current().principal.id

    @rpc
    def sit(self, name: Name) -> None:
        """Take a free seat, or change the name at the own seat."""
        you = current().principal.id
        self.set_state(lambda game: sit(game, you, name))

    @rpc
    def leave(self) -> None:
        """Give up the own seat; a game goes on without the player."""
        you = current().principal.id
        self.set_state(lambda game: remove(game, you))

    @rpc
    def dismiss(self, player: str) -> None:
        """Remove a player who has no page open, so that the others can go on."""
        find_player(self.state, current().principal.id)
        if player not in {each.id for each in self.state.players}:
            raise Reject("that player has left")
        if player in {connection.user for connection in self.connections()}:
            raise Reject("that player is here")
        self.set_state(lambda game: remove(game, player))

    @rpc
    def deal(self) -> None:
        """Begin a game; the player after the dealer has the first turn."""
        you = current().principal.id
        self.set_state(lambda game: deal(game, you, shuffle(CARDS)))

    @rpc
    def play(self, card: Card, suit: Suit | None = None) -> None:
        """Play a card, and name a suit with an eight."""
        you = current().principal.id
        self.set_state(lambda game: play(game, you, card, suit))

    @rpc
    def draw(self) -> None:
        """Draw a card instead of playing one."""
        you = current().principal.id
        self.set_state(lambda game: draw(game, you, shuffle))


# Rules


def shuffle(cards: Sequence[str]) -> Sequence[str]:
    """Return the cards in an order that no player can foresee."""
    return SystemRandom().sample(cards, len(cards))


def sit(game: Game, you: str, name: str) -> Game:
    """Return the game with a player on a free seat, or with a new name for a seated player."""
    if you in {player.id for player in game.players}:
        return replace(game, players=tuple(replace(p, name=name) if p.id == you else p for p in game.players))
    if game.status == "playing":
        raise Reject("a game is running; take a seat when it is over")
    if len(game.players) == SEATS:
        raise Reject("all seats are taken")
    return replace(game, players=(*game.players, Player(you, name)))


def deal(game: Game, dealer: str, cards: Sequence[str]) -> Game:
    """Return a new game with shuffled cards."""
    find_player(game, dealer)
    if game.status == "playing":
        raise Reject("the game is not over")
    if len(game.players) < 2:
        raise Reject("a game needs two players")
    hands = {player.id: tuple(cards[at * HAND : (at + 1) * HAND]) for at, player in enumerate(game.players)}
    *deck, top = cards[len(hands) * HAND :]
    first = find_next(game, dealer)
    new = Game(game.players, "playing", first, pile=(top,), suit=suit_of(top), hands=hands, deck=tuple(deck))
    return count(new)


def play(game: Game, you: str, card: str, suit: Suit | None) -> Game:
    """Return the game after a player has played a card."""
    check_turn(game, you)
    hand = game.hands[you]
    if card not in hand:
        raise Reject("you do not have that card")
    is_eight = card.startswith("8")
    if not is_eight and suit is not None:
        raise Reject("only an eight names a suit")
    if not is_eight and suit_of(card) != game.suit and card[:-1] != game.pile[-1][:-1]:
        raise Reject(f"{card} fits neither {game.suit} nor {game.pile[-1][:-1]}")
    left = tuple(each for each in hand if each != card)
    if is_eight and suit is None and left:
        raise Reject("name a suit with an eight")
    game = replace(
        game,
        hands={**game.hands, you: left},
        pile=(*game.pile, card),
        suit=suit or suit_of(card),
        last=Move(you, card, suit),
        turn=find_next(game, you),
    )
    return count(game) if left else win(game, you)


def draw(game: Game, you: str, shuffle: Shuffle) -> Game:
    """Return the game after a player has drawn a card, or has passed as none is left.

    The played cards become the deck if it is empty.
    """
    check_turn(game, you)
    deck, pile = game.deck, game.pile
    if not deck:
        deck, pile = tuple(shuffle(pile[:-1])), pile[-1:]
    hands = {**game.hands, you: (*game.hands[you], *deck[-1:])}
    turn = find_next(game, you)
    return count(replace(game, hands=hands, deck=deck[:-1], pile=pile, last=Move(you, has_passed=not deck), turn=turn))


def remove(game: Game, id: str) -> Game:
    """Return the game without a player, whose cards go below the deck."""
    leaving = find_player(game, id)
    players = tuple(each for each in game.players if each != leaving)
    if not players:
        return Game()
    turn = find_next(game, id) if game.turn == id else game.turn
    deck = (*game.hands.get(id, ()), *game.deck)
    hands = {each: hand for each, hand in game.hands.items() if each != id}
    left = count(replace(game, players=players, turn=turn, hands=hands, deck=deck))
    return win(left, players[0].id) if game.status == "playing" and len(players) == 1 else left


def win(game: Game, id: str) -> Game:
    """Return the game that a player has won."""
    players = tuple(replace(each, wins=each.wins + 1) if each.id == id else each for each in game.players)
    return count(replace(game, players=players, status="finished", turn=None, winner=id))


def count(game: Game) -> Game:
    """Return the game with the sizes that follow from its hands and its deck."""
    players = tuple(replace(each, cards=len(game.hands.get(each.id, ()))) for each in game.players)
    return replace(game, players=players, deck_size=len(game.deck))


def check_turn(game: Game, you: str) -> None:
    """Raise `Reject` unless it is a player's turn."""
    find_player(game, you)
    if game.status != "playing":
        raise Reject("the game is not running")
    if game.turn != you:
        raise Reject("it is not your turn")


def find_player(game: Game, id: str) -> Player:
    """Return a player. Raises `Reject` if no player has the id."""
    for player in game.players:
        if player.id == id:
            return player
    raise Reject("only a player at this table can do that")


def find_next(game: Game, id: str) -> str:
    """Return the id of the player whose turn follows that of a player."""
    ids = [player.id for player in game.players]
    return ids[(ids.index(id) + 1) % len(ids)]


def suit_of(card: str) -> Suit:
    """Return the suit of a card."""
    return next(suit for suit in SUITS if card.endswith(suit))


# Who a reader is


def authenticate(request: Request) -> Principal:
    """Return the person of a page, by the key that the browser has made and keeps.

    The demo has no login. The key is a secret, and the id, which everybody at a table sees, is its hash. Any user can
    become an observer by asking. In your app, a login knows the user and the user's groups: see docs/login.md.
    """
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    key, _, group = token.partition(".")
    if not key:
        return Principal("guest")  # Programs, and requests for images and lists.
    return Principal(hashlib.sha256(key.encode()).hexdigest()[:16], groups={group} - {""})


app = Plait(CardGame, static=PAGES, authenticate=authenticate)
