"""A session of the OpenAI Agents SDK in a thread's messages, with the extra `plait[openai-agents]`."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

from plait import ThreadMessages
from plait.adapters.message_history import Fields, Format, load_history
from plait.parts.messages.message import make_call, read_call

__all__ = ["ThreadSession"]


class ThreadSession:
    """A `Session` whose items are a thread's messages: `Runner.run(agent, input, session=ThreadSession(messages))`.

    In a run of an agent, the items are stored with the run; outside of one, at once. All items are kept; with
    `max_items`, the agent gets approximately that many of the last, beginning with a message of the user. Raises what
    `ThreadMessages` raises.
    """

    def __init__(
        self,
        messages: ThreadMessages,
        *,
        session_id: str = "",
        session_settings: Any = None,
        max_items: int | None = None,
    ) -> None:
        if max_items is not None and max_items < 1:
            raise ValueError(f"max_items must be at least 1, not {max_items!r}")
        self.session_id = session_id
        # The SDK's SessionSettings, or None.
        self.session_settings: Any = session_settings
        self._messages = messages
        self._most = max_items
        self._is_steered = False

    async def run(self, agent: Any, input: Any = None, **options: Any) -> Any:
        """Run an agent by `Runner.run` with this session, steered by what is queued during the run; return the result.

        Without an input, the queued messages are taken.
        """
        given, options = self._prepare(input, options)
        return await import_module("agents").Runner.run(agent, given, **options)

    def run_streamed(self, agent: Any, input: Any = None, **options: Any) -> Any:
        """Do the same by `Runner.run_streamed`."""
        given, options = self._prepare(input, options)
        return import_module("agents").Runner.run_streamed(agent, given, **options)

    async def steer(self, call: Any) -> Any:
        """Give the model the messages queued since its last call: `RunConfig(call_model_input_filter=session.steer)`.

        The model of such a run then gets all items of the session, in the session's order.
        """
        if await self._messages.pending() and await self._messages.take():
            self._is_steered = True
        if self._is_steered:
            call.model_data.input = await self.get_items()
        return call.model_data

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the items in order; with a limit, only the last ones."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        items = [item for each in await load_history(self._messages, self._most) for item in _FORMAT.read(each)]
        return items if limit is None else items[max(len(items) - limit, 0) :]

    async def add_items(self, items: Sequence[Any]) -> None:
        """Add items at the end."""
        results = [self._messages.inject(**_FORMAT.write(item)) for item in items]
        for result in results:
            await result

    async def pop_item(self) -> Any:
        """Remove the last item and return it, None if there is none."""
        items: list[Any] = []
        found = await load_history(self._messages, 1)
        while found and not items:
            message = found.pop()
            items = _FORMAT.read(message)
            await self._messages.delete(message.id)
        await self.add_items(items[:-1])
        return items[-1] if items else None

    async def clear_session(self) -> None:
        """Remove all items."""
        for each in await load_history(self._messages):
            await self._messages.delete(each.id)

    # Inside

    def _prepare(self, input: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the input and the options of a run."""
        config = options.get("run_config") or {}
        if isinstance(config, dict):
            config = import_module("agents").RunConfig(**config)
        if config.call_model_input_filter is None:
            config = replace(config, call_model_input_filter=self.steer)
        if input is None:
            self._messages.take()
        return [] if input is None else input, {**options, "session": self, "run_config": config}


class _Format(Format):
    """Keeps the items of the SDK."""

    name = "openai_agents"

    def tell(self, item: dict[str, Any]) -> Fields:
        match item:
            case {"type": "function_call", "call_id": str(id), "name": str(name), "arguments": str(arguments)}:
                return Fields("assistant", tool_calls=[make_call(id, name, arguments)])
            case {"type": "function_call_output", "call_id": str(id)}:
                return Fields("tool", _read_text(item.get("output")), tool_call_id=id)
            case {"role": "user" | "assistant" | "system" | "developer" as role} if item.get("type") in (
                None,
                "message",
            ):
                return Fields("system" if role == "developer" else role, _read_text(item.get("content")))
        return Fields("assistant", silent=True)

    def make(self, fields: Fields) -> list[dict[str, Any]]:
        if fields.role == "tool":
            return [
                {"type": "function_call_output", "call_id": fields.tool_call_id or "", "output": fields.content or ""}
            ]
        items: list[dict[str, Any]] = (
            [] if fields.content is None else [{"role": fields.role, "content": fields.content}]
        )
        for id, name, arguments in map(read_call, fields.tool_calls or ()):
            items.append({"type": "function_call", "call_id": id, "name": name, "arguments": arguments})
        return items


def _read_text(content: Any) -> str | None:
    """Return the text of a value that is a text or a list of parts."""
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts) if texts else None


_FORMAT: Final = _Format()
