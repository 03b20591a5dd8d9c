"""Threads with variables."""

from typing import Any

from plait import Env, Plait, Thread, rpc
from plait.parts.env.env import ThreadEnv
from plait.store.thread_rows import ThreadKey

__all__ = ["NEW", "NO_CLOCK", "OLD", "VALUE", "Room", "env_of", "make_app"]

# The clock runs by itself.
NO_CLOCK: Any = None
# Found in what is searched only if it leaks.
VALUE = "sk-7f3Qx0Zz9leak"
OLD, NEW = "an old secret of the server", "a new secret of the server"


class Room(Thread[dict[str, Any]]):
    initial_state = {"n": 0}  # noqa: RUF012
    env = Env()

    @rpc
    async def reveal(self, name: str) -> str:
        return (await self.env.get(name)).reveal()

    @rpc
    async def answer(self, name: str) -> Any:
        return await self.env.get(name)

    @rpc
    async def fail(self, name: str) -> None:
        value = await self.env.get(name)
        raise RuntimeError(f"no answer with {value}", value)

    @rpc
    async def put_in_state(self, name: str) -> None:
        value = await self.env.get(name)
        self.set_state(lambda state: {**state, "value": value})


def make_app(url: str = "memory://", *, secret: Any = NEW, **options: Any) -> Plait:
    return Plait(Room, store=url, secret=secret, **options)


async def env_of(app: Plait, name: str = "one", cls: type[Thread[Any]] = Room) -> ThreadEnv:
    """Return the variables of a thread, awake."""
    thread = (await app._node.actor(ThreadKey(cls._kind.name, name))).thread
    env = thread.env  # type: ignore[attr-defined]
    assert isinstance(env, ThreadEnv)
    return env
