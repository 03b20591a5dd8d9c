"""Reads messages as the calling code sees them: in a run, with its own writes."""

from collections.abc import Callable

from plait.errors import Conflict
from plait.parts.messages.message import Message
from plait.parts.messages.view import View
from plait.parts.messages.writer import Writer

__all__ = ["Reader"]


class Reader:
    """Finds messages; `find_view` returns the view of the calling run, None if there is none."""

    def __init__(self, writer: Writer, find_view: Callable[[], View | None]) -> None:
        self._writer = writer
        self._find_view = find_view

    def find_untaken(self) -> list[Message]:
        """Return the queued messages that no run has taken, in order."""
        view = self._find_view() or View()
        return view.find_untaken(self._writer.state.queue, self._writer.taken)

    async def find(self, id: str) -> Message | None:
        """Return a message by its id; None if there is none. Raises StoreError."""
        if (view := self._find_view()) is not None:
            if id in view.removed or id in view.ids:
                return view.ids.get(id)
            if (pending := next((each for each in self.find_untaken() if each.id == id), None)) is not None:
                return pending
        return self._writer.state.find_pending(id) or await self._writer.history.find(id)

    async def find_present(self, id: str) -> tuple[Message | None, list[Message]]:
        """Return a message and the results of its tool calls, as they are when this returns.

        Raises Conflict for a message that is being written, and StoreError.
        """
        while True:
            edits = self._writer.edits
            message = await self.find(id)
            results = [] if message is None or not message.tool_calls else await self._find_results(message)
            if message is not None and message.status == "streaming":
                raise Conflict(f"the message {id} is being written")
            if edits == self._writer.edits:
                return message, results

    async def _find_results(self, message: Message) -> list[Message]:
        wanted, view = message.tool_call_ids, self._find_view() or View()
        pages = self._writer.history.pages(
            reverse=False,
            after=message.position,
            before=self._writer.numbers.position + 1,
            staged=view.rows,
            removed=view.removed,
        )
        return [each async for page in pages for each in page if each.tool_call_id in wanted]
