"""A parent whose children notify it of each step, for servers that are killed."""

import os
from typing import Any

from plait import Family, Messages, Plait, Thread, rpc

__all__ = ["Boss", "Kid", "app"]


class Kid(Thread[dict[str, int]]):
    """Tells its parent of each step, in the write of the step."""

    idle_timeout = 0.1
    initial_state = {"n": 0}  # noqa: RUF012
    family = Family()
    messages = Messages()

    @rpc
    def step(self) -> int:
        """Make a step, and return its number."""
        with self.transaction():
            self.set_state({"n": self.state["n"] + 1})
            self.family.notify_parent(str(self.state["n"]))
            if self.state["n"] % 5 == 0:
                self.family.set_status(f"at {self.state['n']}")
        return self.state["n"]

    @rpc
    async def look(self) -> list[Any]:
        """Return the parent's name, what is queued, and the number of steps."""
        parent = self.family.parent
        began = [each.content for each in await self.messages.pending()]
        return [parent.name if parent else None, began, self.state["n"]]


class Boss(Thread[dict[str, list[str]]]):
    """Has children made, and looks at what they have told."""

    initial_state = {"made": []}  # noqa: RUF012
    family = Family()
    messages = Messages()

    @rpc
    async def make(self, name: str) -> None:
        """Have a child that is there when this returns."""
        if name not in self.state["made"]:
            with self.transaction():
                self.set_state({"made": [*self.state["made"], name]})
                self.family.spawn(Kid, name, message="begin")
        assert await self.family.child(f"kid/{name}") is not None

    @rpc
    def where(self) -> int:
        """Return the id of the process."""
        return os.getpid()

    @rpc
    async def look(self) -> dict[str, Any]:
        """Return the names of the children in the state, the children with their statuses, and what each has told."""
        notices = dict[str | None, list[int]]()
        after, more = None, True
        while more:
            page = await self.messages.list(1000, include_silent=True, order="asc", after=after)
            for each in page.messages:
                notices.setdefault(each.subagent_id, []).append(int(each.content or 0))
                after = each.position
            more = page.has_more
        children = [[each.name, each.status] for each in self.family.children]
        return {"made": self.state["made"], "children": children, "notices": notices}


app = Plait(Boss, Kid, limits=None)
