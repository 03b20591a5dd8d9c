"""The threads and agents of the lines that type checkers read."""

from collections.abc import AsyncIterator

import msgspec

from plait import Context, Messages, Plait, Schedule, Stream, Thread, Values, rpc

__all__ = ["Arena", "Cart", "CartThread", "Game", "GameRoom", "Lobby", "Question", "app", "count", "support", "tick"]


class Game(msgspec.Struct, frozen=True):
    players: tuple[str, ...] = ()
    score: int = 0
    note: str = ""


class Question(msgspec.Struct, frozen=True):
    text: str


class GameRoom(Thread[Game]):
    initial_state = Game()
    values = Values()
    messages = Messages()
    schedule = Schedule()

    @rpc
    def add_player(self, name: str, *, team: int = 0) -> int:
        self.set_state(lambda s: Game((*s.players, name), s.score, s.note))
        return len(self.state.players)

    @rpc
    async def remove(self, name: str) -> bool:
        return name in self.state.players

    @rpc(name="scores", concurrent=True)
    async def get_scores(self) -> dict[str, int]:
        return dict.fromkeys(self.state.players, self.state.score)

    @rpc
    def find_game(self) -> Game:
        return self.state

    @rpc
    def reset(self) -> None:
        self.set_state(Game())

    @rpc
    async def watch(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i

    @rpc
    async def talk(self, stream: Stream, text: str) -> None:
        stream.send(text)
        stream.end()

    @rpc
    async def invite(self, other: str) -> int:
        return await self.thread(Lobby, other).call(Lobby.report, self.name, 3)


class Arena(GameRoom):
    @rpc
    async def fight(self) -> str:
        return "a draw"


class Lobby(Thread[dict[str, int]]):
    initial_state = dict[str, int]

    @rpc
    async def report(self, room: str, n: int) -> int:
        self.set_state(lambda s: {**s, room: n})
        return n


class Cart(msgspec.Struct, frozen=True):
    items: tuple[str, ...] = ()


class CartThread(Thread[Cart]):
    initial_state = Cart()

    @rpc
    def add(self, item: str) -> int:
        self.set_state(lambda s: Cart((*s.items, item)))
        return len(self.state.items)


app = Plait(GameRoom, Lobby, Arena, CartThread, store="memory://", secret="of the test")


@app.agent("support", thread=GameRoom)
async def support(ctx: Context[GameRoom], input: Question) -> str:
    return input.text


@app.agent("count", thread=GameRoom)
async def count(ctx: Context[GameRoom], input: int) -> AsyncIterator[int]:
    for i in range(input):
        yield i


@app.agent("tick", thread=GameRoom)
async def tick(ctx: Context[GameRoom]) -> int:
    return len(await ctx.run(support, Question("four")))
