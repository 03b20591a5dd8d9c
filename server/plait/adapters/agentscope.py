"""Keeps the state of AgentScope's agents in a thread's values, with the extra `plait[agentscope]`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, Self, TypeVar

from plait import Interrupted, ThreadValues

__all__ = ["load_state", "open_state", "save_state"]

_KEY: Final = "agentscope"


class _AgentState(Protocol):
    """The methods that are used of `agentscope.state.AgentState`, and of other states, which are Pydantic models."""

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...

    @classmethod
    def model_validate(cls, obj: Any) -> Self: ...


S = TypeVar("S", bound=_AgentState)


async def load_state(values: ThreadValues, type: type[S], *, key: str = _KEY) -> S | None:
    """Return the state that `save_state` has stored, None if there is none. Raises ValidationError if it is invalid."""
    kept = await values.get(key)
    return None if kept is None else type.model_validate(kept)


async def save_state(values: ThreadValues, state: _AgentState, *, key: str = _KEY) -> None:
    """Store the state of an agent."""
    await values.set(key, state.model_dump(mode="json"))


@asynccontextmanager
async def open_state(values: ThreadValues, type: type[S], *, key: str = _KEY) -> AsyncIterator[S]:
    """Load the stored state, or make a new one, for an `Agent(..., state=state)` in the block, and store it at the end.

    The state is also stored when the block is interrupted or cancelled, but not when it raises an Exception.
    """
    state = await load_state(values, type, key=key) or type()
    try:
        yield state
    except Exception:
        raise
    except BaseException:
        await _keep(values, state, key)
        raise
    await _keep(values, state, key)


async def _keep(values: ThreadValues, state: _AgentState, key: str) -> None:
    try:
        await save_state(values, state, key=key)
    except Interrupted:  # The run was interrupted after its last checkpoint, or once more.
        await save_state(values, state, key=key)
        raise
