"""A session of the OpenAI Agents SDK in a thread's values, with the extra `plait[openai-agents]`."""

import copy
from collections.abc import Sequence
from typing import Any

from plait import ThreadValues

__all__ = ["ThreadSession"]


class ThreadSession:
    """A `Session` whose items are one of a thread's values: `Runner.run(agent, input, session=ThreadSession(values))`.

    In a run of an agent, the items are stored with the run; outside of one, at once. With `max_items`, only
    approximately that many of the last items are kept, beginning with a message of the user. Raises what `ThreadValues`
    raises.
    """

    def __init__(
        self,
        values: ThreadValues,
        *,
        session_id: str = "",
        session_settings: Any = None,
        key: str = "openai_agents",
        max_items: int | None = None,
    ) -> None:
        if max_items is not None and max_items < 1:
            raise ValueError(f"max_items must be at least 1, not {max_items!r}")
        self.session_id = session_id
        # The SDK's SessionSettings, or None.
        self.session_settings: Any = session_settings
        self._values = values
        self._key = key
        self._most = max_items

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the items in order; with a limit, only the last ones."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        items: list[Any] = await self._values.get(self._key, [])
        # Return a copy, as changes inside of a value would be stored.
        return copy.deepcopy(items if limit is None else items[max(len(items) - limit, 0) :])

    async def add_items(self, items: Sequence[Any]) -> None:
        """Add items at the end."""
        if items:
            await self._values.update(self._key, lambda before: self._cut([*before, *items]), [])

    async def pop_item(self) -> Any:
        """Remove the last item and return it, None if there is none."""
        popped: list[Any] = []

        def pop(items: list[Any]) -> list[Any]:
            popped[:] = items[-1:]
            return items[:-1]

        if await self._values.get(self._key):
            await self._values.update(self._key, pop, [])
        return popped[0] if popped else None

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._values.delete(self._key)

    def _cut(self, items: list[Any]) -> list[Any]:
        """Return the last items, beginning with a message of the user, so that every result of a tool has its call."""
        if self._most is None or len(items) <= self._most:
            return items
        starts = [at for at, item in enumerate(items) if isinstance(item, dict) and item.get("role") == "user"]
        return items[next((at for at in starts if at >= len(items) - (self._most or 0)), starts[-1] if starts else 0) :]
