"""Lines that type checkers refuse: each with what is wrong, and the errors that mypy and pyright report there."""

from tests.typing.rooms import Arena, Cart, CartThread, Game, GameRoom, Lobby, Question, app, count, support, tick

from plait import Context, Handle, Step, Thread
from plait.testing import Served
from plait_client import Room, RoomQuery, SyncRoom


async def misuse_calls() -> None:
    room = app.thread(GameRoom, "x")
    lobby = app.thread(Lobby, "x")
    # an rpc as an attribute
    room.cleer_done()  # attr-defined, reportAttributeAccessIssue
    # a function that the class does not have
    await room.call(GameRoom.ad_player, "Ada")  # attr-defined, reportAttributeAccessIssue
    # an argument is missing
    await room.call(GameRoom.add_player)  # call-overload, reportCallIssue
    # an argument of another type
    await room.call(GameRoom.add_player, 5)  # call-overload, reportArgumentType
    # a positional argument for a keyword
    await room.call(GameRoom.add_player, "Ada", 5)  # call-overload, reportCallIssue
    # a keyword of another type
    await room.call(GameRoom.add_player, "Ada", team="red")  # arg-type, reportArgumentType
    # a misspelt keyword
    await room.call(GameRoom.add_player, nam="Ada")  # call-overload, reportCallIssue
    # an argument too many
    await room.call(GameRoom.reset, 1)  # call-overload, reportCallIssue
    # an rpc of another class
    await room.call(CartThread.add, "x")  # call-overload, reportArgumentType
    # an rpc of a subclass
    await room.call(Arena.fight)  # call-overload, reportArgumentType
    # an rpc of another class whose state is plain
    await lobby.call(GameRoom.reset)  # call-overload, reportArgumentType
    # no rpc
    await room.call(5)  # call-overload, reportCallIssue
    # a forgotten await
    room.call(GameRoom.remove, "x")  # unused-coroutine, reportUnusedCoroutine
    # the result of a `def` as another type
    players: str = await room.call(GameRoom.add_player, "Ada")  # call-overload, reportAssignmentType
    # the result of a coroutine as another type
    removed: str = await room.call(GameRoom.remove, "Ada")  # call-overload, reportAssignmentType
    # the chunks of a stream as another type
    chunks: list[str] = await room.call(GameRoom.watch, 3)  # call-overload, reportAssignmentType
    # an attribute that the result does not have
    (await room.call(GameRoom.find_game)).scores  # attr-defined, reportAttributeAccessIssue
    # a Stream is not given by the caller
    await room.call(GameRoom.talk)  # call-overload, reportCallIssue
    # iterating over an rpc that does not stream
    room.stream(GameRoom.remove, "x")  # call-overload, reportArgumentType
    # an argument of a stream of another type
    room.stream(GameRoom.watch, "x")  # call-overload, reportArgumentType
    # a stream in a loop that is not async
    list(room.stream(GameRoom.watch, 3))  # call-overload, reportArgumentType
    del players, removed, chunks


async def misuse_state() -> None:
    room = app.thread(GameRoom, "x")
    lobby = app.thread(Lobby, "x")
    # a state of another type
    await room.set_state(5)  # arg-type, reportArgumentType
    # the state of another class
    await room.set_state(Cart())  # arg-type, reportArgumentType
    # a function that returns another type
    await room.set_state(lambda s: s.score)  # arg-type, reportArgumentType
    # a field that the state does not have, in a function
    await room.set_state(lambda s: Game(s.playerz))  # attr-defined, reportAttributeAccessIssue
    # a value of another type in a dict
    await lobby.set_state({"a": "b"})  # dict-item, reportArgumentType
    # the state as another type
    cart: Cart = await room.state()  # assignment, reportAssignmentType
    # a field before the await
    room.state().score  # attr-defined, reportAttributeAccessIssue
    # a field that the state does not have
    (await room.state()).scor  # attr-defined, reportAttributeAccessIssue
    # a state that is not awaited
    room.state()  # unused-coroutine, reportUnusedCoroutine
    # a pointer of another type
    await room.update(5, "x")  # arg-type, reportArgumentType
    # a version of another type
    await room.history(since="x")  # arg-type, reportArgumentType
    # an undo without a source
    await room.undo()  # call-arg, reportCallIssue
    # an edit from outside
    room.edit()  # attr-defined, reportAttributeAccessIssue
    del cart


async def misuse_parts() -> None:
    room = app.thread(GameRoom, "x")
    # a method that the part does not have
    await room.part(GameRoom.values).gett("a")  # attr-defined, reportAttributeAccessIssue
    # a part that the class does not have
    await room.part(GameRoom.valuez).get("a")  # attr-defined, reportAttributeAccessIssue
    # the name of a part
    room.part("values")  # arg-type, reportArgumentType
    # an rpc for a part
    room.part(GameRoom.reset)  # arg-type, reportArgumentType
    # a part as an attribute
    await room.values.get("a")  # attr-defined, reportAttributeAccessIssue


async def misuse_classes() -> None:
    room = app.thread(GameRoom, "x")
    # a class that is no Thread
    app.thread(Game, "x")  # type-var, reportArgumentType
    # a thread without a name
    app.thread(GameRoom)  # call-arg, reportCallIssue
    # the kind of a thread
    app.thread("game-room", "x")  # arg-type, reportArgumentType
    # a handle of another class
    cart: Handle[CartThread] = room  # assignment, reportAssignmentType
    # a handle of a class for one of its subclasses
    arena: Handle[Arena] = room  # assignment, reportAssignmentType
    # a handle of a state
    state: Handle[int] | None = None  # type-var, reportInvalidTypeArguments
    # an argument of another type, in a session's thread
    await app.session(GameRoom, "s").call(GameRoom.remove, 5)  # call-overload, reportArgumentType
    # an rpc of another class, on a fork
    await (await app.fork_thread(GameRoom, "x", "y")).call(CartThread.add, "x")  # call-overload, reportArgumentType
    del cart, arena, state


async def misuse_agents(ctx: Context[GameRoom]) -> None:
    # an input of another type
    await app.run(support, "text")  # arg-type, reportArgumentType
    # an input is missing
    await app.run(support)  # arg-type, reportCallIssue
    # an input for an agent without one
    await app.run(tick, 3)  # arg-type, reportCallIssue
    # an output as another type
    output: int = await app.run(support, Question("x"))  # assignment, reportAssignmentType
    # a misspelt option
    await app.run(support, Question("x"), sesion_id="s")  # call-overload, reportCallIssue
    # an rpc for an agent
    await app.run(GameRoom.reset)  # arg-type, reportArgumentType
    # iterating over an agent that does not stream
    app.stream(support, Question("x"))  # arg-type, reportArgumentType
    # an input of another type, in a run
    await ctx.run(support, "text")  # arg-type, reportArgumentType
    # an output as another type, in a run
    answer: int = await ctx.run(support, Question("x"))  # assignment, reportAssignmentType
    # the chunks of an agent as another type
    chunks: list[str] = await ctx.run(count, 3)  # arg-type, reportAssignmentType
    # an rpc of another class, from inside of a thread
    await ctx.thread.thread(Lobby, "x").call(GameRoom.reset)  # call-overload, reportArgumentType
    del output, answer, chunks


async def misuse_clients(room: Room[Game], sync: SyncRoom[Game]) -> None:
    # an argument of another type, from a client
    await room.call(GameRoom.add_player, 5)  # call-overload, reportArgumentType
    # a result as another type, from a client
    players: str = await room.call(GameRoom.add_player, "A")  # call-overload, reportAssignmentType
    # iterating over an rpc that does not stream, from a client
    room.stream(GameRoom.remove, "x")  # call-overload, reportArgumentType
    # the results of a query as another type
    games: RoomQuery[int] = room.query(GameRoom.find_game)  # arg-type, reportAssignmentType
    # the arguments of a query one by one
    room.query(GameRoom.remove, "Ada", "Bob")  # call-overload, reportCallIssue
    # a result of a query in a loop that is not async
    list(room.query(GameRoom.find_game))  # call-overload, reportArgumentType
    # a state of another type, from a client
    room.set(5)  # arg-type, reportArgumentType
    # a misspelt keyword, from a client that blocks
    sync.call(GameRoom.add_player, nam="Ada")  # call-overload, reportCallIssue
    # a result as another type, from a client that blocks
    removed: int = sync.call(GameRoom.find_game)  # assignment, reportAssignmentType
    # an attribute that the result of a query does not have, from a client that blocks
    next(sync.query(GameRoom.find_game)).scor  # attr-defined, reportAttributeAccessIssue
    del players, removed, games


async def misuse_served(t: Served) -> None:
    # the kind of a class for the class
    t.connect("game-room", "x")  # arg-type, reportArgumentType
    # a user's id for a principal
    t.connect(GameRoom, "x", principal="ada")  # arg-type, reportArgumentType
    # a misspelt option of a client of a test
    t.connect(GameRoom, "x", tokn="secret")  # call-arg, reportCallIssue
    # a text for seconds
    await t.clock.advance("1h")  # arg-type, reportArgumentType
    async with t.connect(GameRoom, "x") as room:
        pass
    # a field that the state does not have, from a client of a test
    room.state.scor  # attr-defined, reportAttributeAccessIssue
    # a number for a text, from a client of a test
    await room.call(GameRoom.add_player, 5)  # call-overload, reportArgumentType


async def misuse_steps(step: Step) -> None:
    # a misspelt option of a step
    await step.do("count", dict, atempts=3)  # call-overload, reportCallIssue
    # a text for a number that a step returns
    (await step.do("count", dict, once=True, type=int)).upper()  # attr-defined, reportAttributeAccessIssue


class Wrong(Thread[Game]):
    # a number for the places that clients may change
    can_write = 7  # assignment, reportAssignmentType


class Late(Thread[Game]):
    # a method for these places that is async
    async def can_write(self, state: Game, viewer: object) -> list[str]:  # override, reportIncompatibleVariableOverride
        return []
