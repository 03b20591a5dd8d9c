"""A parent whose children notify it of each step, for servers that are killed."""

import os
from typing import Any

from plait import Family, Files, Messages, Plait, Thread, rpc

__all__ = ["Boss", "Kid", "app"]


class Kid(Thread[dict[str, int]]):
    """Tells its parent of each step, in the write of the step."""

    idle_timeout = 0.1
    initial_state = {"n": 0}  # noqa: RUF012
    family = Family()
    messages = Messages()
    files = Files()

    @rpc
    async def step(self) -> int:
        """Make a step, and return its number; each fifth one has a file for the parent."""
        number = self.state["n"] + 1
        upload = await self.files.receive(str(number)) if number % 5 == 0 else None
        with self.transaction():
            self.set_state({"n": number})
            if upload is None:
                self.family.notify_parent(str(number))
            else:
                self.files.put(f"{number}.txt", upload)
                self.family.notify_parent(str(number), files=[f"{number}.txt"])
                self.family.set_status(f"at {number}")
        return number

    @rpc
    async def leave(self) -> None:
        """End for good."""
        await self.destroy()

    @rpc
    async def look(self) -> list[Any]:
        """Return the parent's name, the queued messages, and the number of steps."""
        parent = self.family.parent
        began = [
            [each.content, *[(await self.files.read(file["path"]) or b"").decode() for file in each.attachments]]
            for each in await self.messages.pending()
        ]
        return [parent.name if parent else None, began, self.state["n"]]


class Boss(Thread[dict[str, list[str]]]):
    """Has children made, and looks at what they have told."""

    initial_state = {"made": []}  # noqa: RUF012
    family = Family()
    messages = Messages()
    files = Files()

    @rpc
    async def make(self, name: str) -> None:
        """Have a child that is there when this returns."""
        if name not in self.state["made"]:
            await self.files.write(f"{name}.txt", name)
            with self.transaction():
                self.set_state({"made": [*self.state["made"], name]})
                self.family.spawn(Kid, name, message="begin", files=[f"{name}.txt"])
        assert await self.family.child(f"kid/{name}") is not None

    @rpc
    def where(self) -> int:
        """Return the id of the process."""
        return os.getpid()

    @rpc
    async def look(self) -> dict[str, Any]:
        """Return the names of the children in the state, the children with their statuses, and the notices of each.

        A notice with a file has the content of the file, too.
        """
        notices = dict[str | None, list[list[str]]]()
        after, more = None, True
        while more:
            page = await self.messages.list(1000, include_silent=True, order="asc", after=after)
            for each in page.messages:
                files = [(await self.files.read(file["path"]) or b"").decode() for file in each.attachments]
                notices.setdefault(each.subagent_id, []).append([each.content or "", *files])
                after = each.position
            more = page.has_more
        children = [[each.name, each.status] for each in self.family.children]
        return {"made": self.state["made"], "children": children, "notices": notices}


app = Plait(Boss, Kid, limits=None)
