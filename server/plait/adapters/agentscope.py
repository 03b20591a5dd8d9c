"""Keeps the state of AgentScope's agents in a thread's values and messages, with the extra `plait[agentscope]`."""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, Protocol, Self, TypeVar

from plait import Interrupted, Message, ThreadMessages, ThreadValues
from plait.adapters.message_history import Fields, Format, load_history
from plait.parts.messages.message import make_call, make_own, read_call, read_own

__all__ = ["Steering", "load_state", "open_state", "save_state"]

_KEY: Final = "agentscope"

Item = dict[str, Any]


class _AgentState(Protocol):
    """The methods of `agentscope.state.AgentState`, or of other states that are Pydantic models, that are used here."""

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...

    @classmethod
    def model_validate(cls, obj: Any) -> Self: ...


S = TypeVar("S", bound=_AgentState)


class Steering:
    """A middleware that gives an agent the messages queued since the last call of its model: see `open_state`."""

    def __init__(self) -> None:
        self._conversation: _Conversation | None = None

    def is_implemented(self, hook_name: str) -> bool:
        """Whether AgentScope calls a hook of this middleware."""
        return hook_name == "on_reasoning"

    async def on_reasoning(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[[], AsyncGenerator[Any, None]]
    ) -> AsyncIterator[Any]:
        """Called by AgentScope before each call of the model."""
        if self._conversation is not None:
            await self._conversation.steer(agent.state)
        async with aclosing(next_handler()) as events:
            async for each in events:
                yield each


async def load_state(values: ThreadValues, type: type[S], *, key: str = _KEY) -> S | None:
    """Return the state that `save_state` has stored, None if there is none. Raises ValidationError if it is invalid."""
    kept = await values.get(key)
    return None if kept is None else type.model_validate(kept)


async def save_state(values: ThreadValues, state: _AgentState, *, key: str = _KEY) -> None:
    """Store the state of an agent."""
    await values.set(key, state.model_dump(mode="json"))


@asynccontextmanager
async def open_state(
    values: ThreadValues,
    type: type[S],
    *,
    messages: ThreadMessages | None = None,
    steering: Steering | None = None,
    key: str = _KEY,
) -> AsyncIterator[S]:
    """Load the stored state, or make a new one, for an `Agent(..., state=state)` in the block, and store it at the end.

    The state is also stored when the block is interrupted or cancelled, but not when it raises an Exception.

    With `messages`, these are the context of the state, with the queued ones, and the agent's additions to it are added
    to them; the rest of the state is in the values. With `steering` as well, which must be in the agent's
    `middlewares`, a question that is queued during the run steers it.
    """
    place = _Values(values, key) if messages is None else _Conversation(values, key, messages)
    state = type.model_validate(await place.load())
    place.begin(state.model_dump(mode="json"))
    if steering is not None:
        if not isinstance(place, _Conversation):
            raise ValueError("steering needs messages")
        steering._conversation = place
    try:
        yield state
    except Exception:
        raise
    except BaseException:
        await _keep(place, state)
        raise
    await _keep(place, state)


async def _keep(place: "_Values | _Conversation", state: _AgentState) -> None:
    try:
        await place.save(state.model_dump(mode="json"))
    except Interrupted:  # The run was interrupted after its last checkpoint, or once more.
        await place.save(state.model_dump(mode="json"))
        raise


class _Values:
    """A state that is one value."""

    def __init__(self, values: ThreadValues, key: str) -> None:
        self._values = values
        self._key = key

    async def load(self) -> dict[str, Any]:
        return dict(await self._values.get(self._key, {}))

    def begin(self, state: dict[str, Any]) -> None:
        pass

    async def save(self, state: dict[str, Any]) -> None:
        await self._values.set(self._key, state)


class _Conversation:
    """A state whose context is a thread's messages; the values have the differences from these, and the rest.

    AgentScope compresses its context: it removes messages from it, and blocks from messages. All stay in the thread.
    """

    def __init__(self, values: ThreadValues, key: str, messages: ThreadMessages) -> None:
        self._values = _Values(values, key)
        self._messages = messages
        # The messages in the context and their items there, by the ids of the items.
        self._known: dict[str, tuple[Message, Item]] = {}
        # The messages in the context, by their ids in the thread; None for one that is not in it.
        self._edited: dict[str, Item | None] = {}
        # The position of the first message in the context.
        self._first = 1

    async def load(self) -> Item:
        """Return the state, after taking the queued messages."""
        await self._messages.take()
        state = await self._values.load()
        kept = state.pop("context", {})
        if isinstance(kept, list):  # The state was stored without messages.
            return {**state, "context": kept}
        self._first, self._edited = kept.get("first", 1), kept.get("edited", {})
        for message in await load_history(self._messages, after=self._first - 1):
            made = None if _RESULT in read_own(message) else _FORMAT.read(message)[0]
            item = self._edited.get(message.id, made)
            if item is not None:
                item = {"id": message.id, **item}
                self._known[item["id"]] = message, item
        return {**state, "context": [item for _, item in self._known.values()]}

    def begin(self, state: Item) -> None:
        """Remember the context as the agent gets it."""
        for item in state["context"]:
            if (known := self._known.get(item["id"])) is not None:
                self._known[item["id"]] = known[0], item

    async def save(self, state: Item) -> None:
        """Add the context's new items to the messages, and store the rest; may be called again after an error."""
        context: list[Item] = state.pop("context")
        there = {item["id"] for item in context}
        wholes: dict[str, Item] = {}
        for item in context:
            known = self._known.get(item["id"])
            whole = item if known is None else _find_whole(known[0], known[1], item)
            if whole is not None:
                wholes[item["id"]] = whole
            elif known is not None and item != known[1]:
                self._edited = {**self._edited, known[0].id: item}
        for id in wholes:
            if id in self._known:
                await self._messages.delete(self._known[id][0].id)
        added = {item["id"]: self._add(wholes[item["id"]]) for item in context if item["id"] in wholes}
        for item in context:
            if (message := added.get(item["id"])) is not None:
                self._known[item["id"]] = message, item
                if wholes[item["id"]] != item:
                    self._edited = {**self._edited, message.id: item}
        places = {id: message.position for id, (message, _) in self._known.items()}
        last = max(places.values(), default=self._first - 1)
        self._first = min((places[id] for id in there), default=last + 1)
        gone = {message.id: None for id, (message, _) in self._known.items() if id not in there}
        ids = {message.id for message, _ in self._known.values() if message.position >= self._first}
        edited = {id: item for id, item in {**self._edited, **gone}.items() if id in ids}
        await self._values.save({**state, "context": {"first": self._first, "edited": edited}})

    async def steer(self, state: Any) -> None:
        """Take the queued messages, after the agent's text so far; its later text is another message."""
        if not await self._messages.pending():
            return
        last = state.context[-1] if state.context else None
        if last is not None and last.id == state.reply_id:
            last.id = secrets.token_hex(16)
            if state.reply_id in self._known:
                self._known[last.id] = self._known.pop(state.reply_id)
        await self.save(state.model_dump(mode="json"))
        for message in await self._messages.take():
            (taken,) = type(state).model_validate({"context": [{"id": message.id, **_FORMAT.read(message)[0]}]}).context
            self._known[message.id] = message, taken.model_dump(mode="json")
            state.context.append(taken)

    def _add(self, item: Item) -> Message:
        """Add a message, and the results of its calls for others that read the thread's messages."""
        message = self._messages.inject(**_FORMAT.write(item)).value
        for block in item["content"]:
            if block["type"] == "tool_result":
                text = _read_text(block["output"])
                self._messages.inject(
                    "tool", text, tool_call_id=block["id"], name=block["name"], metadata=make_own({_RESULT: True})
                )
        return message


def _find_whole(message: Message, before: Item, after: Item) -> Item | None:
    """Return the item of a message in the context, with all compressed blocks; None if it has nothing new."""
    kept = {_name_block(block) for block in after["content"]}
    rest = [block for block in before["content"] if _name_block(block) in kept]
    if {**after, "usage": None} == {**before, "content": rest, "usage": None}:
        return None
    told = _FORMAT.read(message)[0]["content"]
    return {**after, "content": [*(block for block in told if _name_block(block) not in kept), *after["content"]]}


def _name_block(block: Mapping[str, Any]) -> tuple[Any, Any]:
    return block["type"], block.get("id")


class _Format(Format):
    """Keeps the messages of AgentScope."""

    name = "agentscope"

    def tell(self, item: Item) -> Fields:
        texts = [block["text"] for block in item["content"] if block["type"] == "text"]
        calls = [
            make_call(block["id"], block["name"], block["input"])
            for block in item["content"]
            if block["type"] == "tool_call"
        ]
        silent = not any(block["type"] in ("text", "data", "tool_call") for block in item["content"])
        return Fields(item["role"], "\n".join(texts) if texts else None, calls or None, None, item["name"], silent)

    def make(self, fields: Fields) -> list[Item]:
        content: list[Item] = []
        if fields.role == "tool":
            result = {"id": fields.tool_call_id or "", "name": fields.name or "", "output": fields.content or ""}
            content = [{"type": "tool_result", "state": "success", **result}]
        elif fields.content is not None:
            content = [{"type": "text", "text": fields.content}]
        for id, name, arguments in map(read_call, fields.tool_calls or ()):
            content.append({"type": "tool_call", "id": id, "name": name, "input": arguments})
        role = "assistant" if fields.role == "tool" else fields.role
        return [{"name": fields.name or role, "role": role, "content": content}]


def _read_text(output: str | list[Item]) -> str:
    return output if isinstance(output, str) else "\n".join(each["text"] for each in output if each["type"] == "text")


_FORMAT: Final = _Format()
# Marks a result of a tool that is also in the message with its call.
_RESULT: Final = "agentscope_result"
