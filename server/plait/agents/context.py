"""The context of a run, which an agent gets with its input."""

import asyncio
import copy
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextvars import ContextVar, copy_context
from typing import Any, Final, Generic, Protocol, TypeVar, overload

import msgspec
from starlette.requests import Request

from plait.actor.begun import Begun
from plait.actor.connection import Connection
from plait.actor.thread import Thread
from plait.actor.turn import Turn
from plait.agents.run import Run
from plait.agents.session import Session
from plait.author_code import call
from plait.kv.kv import KV
from plait.kv.user import User
from plait.parts.tasks.step import Step

__all__ = ["Context", "check_interrupt", "current_context", "find_context", "read_attributes"]

T = TypeVar("T")
Input = TypeVar("Input")
Output = TypeVar("Output")
ThreadT = TypeVar("ThreadT", bound=Thread[Any])

log = logging.getLogger("plait.agents")

_REFUSAL: Final = (
    "a durable agent takes messages and writes to parts in its steps only: use `await ctx.step.do(name, function)`"
)


def _refuse() -> None:
    raise RuntimeError(_REFUSAL)


_current: Final[ContextVar["Context[Any] | None"]] = ContextVar("plait_context", default=None)


def current_context() -> "Context[Any]":
    """Return the context of the run that the calling code is a part of. Raises LookupError outside of runs."""
    if (context := find_context()) is None:
        raise LookupError("current_context() can only be called while an agent runs")
    return context


def find_context() -> "Context[Any] | None":
    """Return the context of the run that the calling code is a part of; None outside of runs."""
    return _current.get()


def check_interrupt() -> None:
    """Raise Interrupted if the run that the calling code is a part of has been interrupted."""
    if (context := find_context()) is not None:
        context._run.check()


def read_attributes(attributes: Mapping[Any, Any] | Iterable[Any]) -> dict[str | type, Any]:
    """Return attributes by name and type, from such a mapping or from values. Raises TypeError."""
    if not isinstance(attributes, Mapping):
        attributes = dict(map(_read_attribute, attributes))
    for key, value in attributes.items():
        if isinstance(key, type):
            if not isinstance(value, key):
                raise TypeError(f"the attribute {key.__name__} must be of this type, not {value!r}")
        elif not isinstance(key, str):
            raise TypeError(f"an attribute has a name or a type, not {key!r}")
    return dict(attributes)


def _read_attribute(value: object) -> tuple[type, object]:
    if type(value) is tuple or isinstance(value, str):
        raise TypeError(f"{value!r} cannot be found by its type: give attributes with names as a dict")
    return type(value), value


async def _wait(begun: asyncio.Future[object]) -> None:
    await begun


class Caller(Protocol):
    """Runs agents for other agents."""

    def find_user(self, id: str | None) -> User | None: ...

    async def call(self, context: "Context[Any]", agent: str | Callable[..., Any], input: Any) -> Any: ...

    def stream_for(
        self, context: "Context[Any]", agent: str | Callable[..., Any], input: Any
    ) -> AsyncIterator[Any]: ...


class Context(Generic[ThreadT]):
    """One run: its scopes of state, and the methods of an agent; `Context[Conversation]` names the class of its thread.

    `state` is a dict that the agents of one request share until the request ends. `session` is the request, `thread`
    the thread itself, with its `values`, and `user` the values of the user across threads; None without a user.
    """

    def __init__(
        self,
        run: Run,
        caller: Caller,
        *,
        thread: ThreadT,
        user: User | None,
        kv: KV,
        state: dict[str, Any],
        request: Request | None = None,
        connection: Connection | None = None,
        attributes: Mapping[str | type, Any] = {},
    ) -> None:
        self._run = run
        self._caller = caller
        self.thread = thread
        self._user = user
        self.kv = kv
        self.state = state
        # The request or connection that caused the run, if any.
        self.request = request
        self.connection = connection
        # Attributes by name, and by type; never stored.
        self.attributes: dict[str, Any] = {}
        self._typed: dict[type, Any] = {}
        self._put_all(attributes)
        self._step: Step | None = None
        self._logger: logging.LoggerAdapter[logging.Logger] | None = None

    @property
    def session(self) -> Session:
        """The request."""
        return self._run.session

    @property
    def user(self) -> User | None:
        """The user of the run; in a queue's run, after `take()`, the messages' only sender, or the session's user."""
        run = self._run.outermost
        if self._user is not None or run.stage.attempt is None or not run.stage.senders:
            return self._user
        first, *others = run.stage.senders
        return self._caller.find_user(run.session_user if others or first is None else first)

    @property
    def step(self) -> Step:
        """The steps of a durable agent. Raises RuntimeError in any other agent."""
        if self._step is None:
            raise RuntimeError(f"the agent {self.agent!r} has no steps: add it with durable=True")
        return self._step

    @property
    def run_id(self) -> str:
        """The id of this run: `run_` and 32 hexadecimal digits."""
        return self._run.id

    @property
    def logger(self) -> "logging.LoggerAdapter[logging.Logger]":
        """Logs with the thread and the run."""
        if self._logger is None:
            self._logger = logging.LoggerAdapter(
                log, {"plait_thread": str(self._run.actor.key), "plait_run": self.run_id}
            )
        return self._logger

    @property
    def agent(self) -> str:
        """The name of the agent."""
        return self._run.agent.name

    # Attributes

    def put(self, *attribute: Any) -> None:
        """Set an attribute for this run: `put("tenant", value)` by a name, or `put(Tenant("t7"))` by its type.

        `put(Tenant, value)` sets it by a type that it is an instance of.
        """
        match attribute:
            case (key, value):
                self._put_all(read_attributes({key: value}))
            case (value,):
                self._put_all(read_attributes([value]))
            case _:
                raise TypeError("put takes a name and a value, or a value that is found by its type")

    @overload
    def get(self, key: type[T]) -> T | None: ...
    @overload
    def get(self, key: str, default: Any = None) -> Any: ...
    def get(self, key: Any, default: Any = None) -> Any:
        """Return the attribute of a name or a type, or `default`."""
        return self._typed.get(key, default) if isinstance(key, type) else self.attributes.get(key, default)

    # The run

    @property
    def interrupted(self) -> bool:
        """Whether the run has been interrupted; `interrupt_message` is the message of the interrupt."""
        return self._run.outermost.is_interrupted

    @property
    def interrupt_message(self) -> Any:
        """The message of the interrupt; None if there is none."""
        return self._run.outermost.interrupt_message

    @property
    def shutdown_interrupted(self) -> bool:
        """Whether the run before this one was cut off, as the server shut down or crashed."""
        return self._run.outermost.follows_cut_off

    async def checkpoint(self) -> None:
        """Yield to other tasks, and raise Interrupted if this run is interrupted.

        Waits while more than 64 versions of the thread are not durable: an agent that changes the state in a loop calls
        it in each round, so as not to be faster than the store. An interrupt is also raised at each chunk that an agent
        streams, and at each awaited use of this context and of values.
        """
        self._run.check()
        await asyncio.sleep(0)
        await self._run.wait_for_store()
        self._run.check()

    async def flush(self) -> None:
        """Commit the writes so far; they are kept if the run raises. Raises what `Stage.commit` raises."""
        self._run.check()
        await self._run.stage.commit()

    @overload
    async def run(
        self, agent: "Callable[[Context[Any], Input], AsyncIterator[Output]]", input: Input
    ) -> list[Output]: ...
    @overload
    async def run(self, agent: "Callable[[Context[Any]], AsyncIterator[Output]]") -> list[Output]: ...
    @overload
    async def run(self, agent: "Callable[[Context[Any], Input], Awaitable[Output]]", input: Input) -> Output: ...
    @overload
    async def run(self, agent: "Callable[[Context[Any]], Awaitable[Output]]") -> Output: ...
    @overload
    async def run(self, agent: str, input: Any = ...) -> Any: ...
    async def run(self, agent: Any, input: Any = msgspec.UNSET) -> Any:
        """Run another agent, given by its function or its name, in this thread and session, and return its output.

        The output of an agent that streams is a list. The other agent shares `state`, `session`, the attributes and the
        staged writes, and does not wait in the queue.
        """
        self._run.check()
        return await self._caller.call(self, agent, input)

    @overload
    def stream(
        self, agent: "Callable[[Context[Any], Input], AsyncIterator[Output]]", input: Input
    ) -> AsyncIterator[Output]: ...
    @overload
    def stream(self, agent: "Callable[[Context[Any]], AsyncIterator[Output]]") -> AsyncIterator[Output]: ...
    @overload
    def stream(self, agent: str, input: Any = ...) -> AsyncIterator[Any]: ...
    def stream(self, agent: Any, input: Any = msgspec.UNSET) -> AsyncIterator[Any]:
        """Iterate over the chunks of another agent in this thread and session, as `run` does."""
        self._run.check()
        return self._caller.stream_for(self, agent, input)

    def wait_until(self, work: Awaitable[object] | Callable[[], Awaitable[object]]) -> None:
        """Do work in the background after the run has ended: the thread's next run waits for it, but not the answer.

        The work sees the stored writes of the run, and is done even if the run has raised. Its own writes are stored
        when it ends; an error is logged. The work may call `wait_until`, too. The work is cancelled by an interrupt,
        and when all work after the answer takes longer than the agent's `background_timeout`.
        """
        coroutine = work() if callable(work) else work
        if isinstance(coroutine, Begun):
            coroutine = _wait(coroutine.take_over())
        if not asyncio.iscoroutine(coroutine):
            raise TypeError(f"wait_until takes a coroutine, or an async function without arguments, not {work!r}")
        loop, variables = asyncio.get_running_loop(), copy_context()
        name = getattr(coroutine, "__qualname__", "background work")

        def begin(turn: Turn | None) -> asyncio.Task[None]:
            if turn is not None:
                variables.run(turn.enter)
            return loop.create_task(self._work(coroutine), name=f"{name} of {self.run_id}", context=variables)

        self._run.outermost.begin_after(begin)

    async def _work(self, coroutine: Coroutine[Any, Any, object]) -> None:
        try:
            await call(lambda: coroutine)
        except Exception as error:
            self.logger.error("background work of %s raised %s", self.agent, type(error).__name__, exc_info=error)

    def check_inner(self, user_id: str | None, attributes: Mapping[str | type, Any]) -> None:
        """Raise ValueError if another user or other attributes are given for an agent that this one calls."""
        if self.user is not None and user_id is not None and user_id != self.user.id:
            own_id = self.user.id
            raise ValueError(f"a run inside of another run of its thread has the user {own_id!r}, not {user_id!r}")
        for key, value in attributes.items():
            own = self._typed.get(key, self) if isinstance(key, type) else self.attributes.get(key, self)
            if own is self or own != value:
                raise ValueError(f"a run inside of another run of its thread has the same attributes: {key!r} differs")

    def make_inner(self, run: Run, user: "User | None") -> "Context[ThreadT]":
        """Return the context of an agent that this one calls in its thread and session; `user` if this one has none."""
        inner = copy.copy(self)
        inner._run, inner._user, inner._logger = run, self._user or user, None
        return inner

    def give_steps(self, step: Step) -> None:
        """Give the run the steps of its task; nothing can be staged outside of them."""
        self._step = step
        self._run.stage.check = _refuse

    def enter(self) -> Any:
        """Make this the context of the calling task; return a token for `leave`."""
        return _current.set(self)

    def _put_all(self, attributes: Mapping[str | type, Any]) -> None:
        for key, value in attributes.items():
            if isinstance(key, type):
                self._typed[key] = value
            else:
                self.attributes[key] = value

    @staticmethod
    def leave(token: Any) -> None:
        """Undo `enter`."""
        _current.reset(token)
