"""Tic-tac-toe: clients change the game themselves; the server refuses illegal moves, keeps score and has a lobby."""

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from plait import Connection, Plait, Reject, Source, Thread, current, rpc

PAGES = Path(__file__).parent / "pages"
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))

Cell = Annotated[int, Meta(ge=0, le=8)]
Name = Annotated[str, Meta(min_length=1, max_length=40)]
Status = Literal["waiting", "playing", "finished"]


class Player(Struct, frozen=True):
    """Someone at the table."""

    # The id of the player's connection, which stays the same after a reconnect.
    id: str
    name: Name
    wins: int = 0


class Game(Struct, frozen=True):
    """A table: the first player has X and begins, the second has O."""

    players: tuple[Player, ...] = ()
    moves: tuple[Cell, ...] = ()
    status: Status = "waiting"
    # The id of the player who won; None in a finished game means a draw.
    winner: str | None = None


class Card(Struct, frozen=True):
    """The data of a table that the lobby shows."""

    players: tuple[Name, ...]
    status: Status


class TicTacToe(Thread[Game]):
    """Clients join and move by changing the state; the server decides everything else."""

    listed = True
    initial_state = Game()

    def card(self, state: Game) -> Card:
        return Card(tuple(player.name for player in state.players), state.status)

    # Rules

    async def on_start(self) -> None:
        # The server may have stopped between a move and its evaluation.
        self.set_state(evaluate)

    def validate_state_change(self, next_state: Game, source: Source) -> None:
        if isinstance(source, Connection) and next_state != self.state:
            check_push(self.state, next_state, source.id)

    async def on_state_changed(self, state: Game, source: Source) -> None:
        if isinstance(source, Connection):
            self.set_state(evaluate)

    @rpc
    async def rematch(self) -> None:
        """Begin a new game, in which the other player has X."""
        caller = calling_player()
        if self.state.status != "finished" or caller not in [player.id for player in self.state.players]:
            raise Reject("only a player can ask for a rematch, when the game is over")
        players = tuple(reversed(self.state.players))
        self.set_state(Game(players=players, status="playing"))

    @rpc
    async def take_seat(self, absent: str, name: Name) -> None:
        """Take the seat of a player who has left."""
        caller = calling_player()
        players = {player.id: player for player in self.state.players}
        present = [connection.id for connection in self.connections()]
        if absent not in players or absent in present or caller in players:
            raise Reject("that seat is not free")
        players[absent] = Player(caller, name)
        self.set_state(replace(self.state, players=tuple(players.values())))


def calling_player() -> str:
    """Return the id of the connection that made the running call."""
    connection = current().connection
    if connection is None:
        raise Reject("only a player who is connected can do that")
    return connection.id


def check_push(game: Game, pushed: Game, you: str) -> None:
    """Raise `Reject` unless `pushed` is `game` after `you` joined or moved."""
    if pushed == replace(game, players=pushed.players):
        check_join(game, pushed.players, you)
    elif pushed == replace(game, moves=pushed.moves):
        check_move(game, pushed.moves, you)
    else:
        raise Reject("a player can only join or move")


def check_join(game: Game, players: tuple[Player, ...], you: str) -> None:
    """Raise `Reject` unless `you` sat down on a free seat."""
    if len(game.players) == 2:
        raise Reject("both seats are taken", path="/players")
    if you in [player.id for player in game.players]:
        raise Reject("you have joined already", path="/players")
    if players[:-1] != game.players or players[-1] != Player(you, players[-1].name):
        raise Reject("you can only join as yourself", path="/players")


def check_move(game: Game, moves: tuple[int, ...], you: str) -> None:
    """Raise `Reject` unless `you` took a free cell in your turn."""
    if you not in [player.id for player in game.players]:
        raise Reject("you are not playing", path="/moves")
    if game.status != "playing" or has_line(game.moves):
        raise Reject("the game is not running", path="/status")
    if moves[: len(game.moves)] != game.moves:
        raise Reject("earlier moves cannot be changed", path="/moves")
    if len(moves) != len(game.moves) + 1:
        raise Reject("a player cannot move twice in a row", path="/moves")
    if game.players[len(game.moves) % 2].id != you:
        raise Reject("it is not your turn", path="/moves")
    if moves[-1] in game.moves:
        raise Reject("that cell is taken", path="/moves")


def evaluate(game: Game) -> Game:
    """Return the game with the status, winner and wins that follow from its players and moves."""
    if game.status == "waiting" and len(game.players) == 2:
        return replace(game, status="playing")
    if game.status == "playing" and has_line(game.moves):
        winner = game.players[(len(game.moves) - 1) % 2]
        players = tuple(replace(p, wins=p.wins + 1) if p == winner else p for p in game.players)
        return replace(game, players=players, status="finished", winner=winner.id)
    if game.status == "playing" and len(game.moves) == 9:
        return replace(game, status="finished")
    return game


def has_line(moves: tuple[int, ...]) -> bool:
    """Return whether the player who moved last has three in a row."""
    cells = set(moves[::-1][::2])
    return any(cells.issuperset(line) for line in LINES)


app = Plait(TicTacToe, static=PAGES)
