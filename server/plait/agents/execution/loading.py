"""Imports Pydantic AI when a model is called for the first time, as that takes a second."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import cache

from plait.agents.execution.model_attempts import Answer

__all__ = ["load_model_call"]


async def load_model_call() -> Callable[..., AsyncGenerator[str | Answer, None]]:
    """Return `call_model`. Raises ModuleNotFoundError without the extra `plait[execution]`."""
    return _load() if _load.cache_info().currsize else await asyncio.to_thread(_load)


@cache
def _load() -> Callable[..., AsyncGenerator[str | Answer, None]]:
    try:
        from plait.agents.execution.model_call import call_model  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("agents that call models need the extra plait[execution]", name=error.name) from error
    return call_model
