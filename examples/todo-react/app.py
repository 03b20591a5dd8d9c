"""A shared todo list: pages edit the state themselves, and undo their own changes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from plait import Plait, Reject, Source, Thread, current, rpc

DIST = Path(__file__).parent / "dist"
MAX_TODOS = 200

Id = Annotated[str, Meta(pattern="^[a-z0-9]{1,32}$")]
Title = Annotated[str, Meta(min_length=1, max_length=200)]


class Todo(Struct, frozen=True):
    """One thing to do."""

    title: Title
    done: bool = False


class Todos(Struct, frozen=True):
    """Todos by id, and their order, so that moving and renaming a todo at the same time is no conflict."""

    todos: dict[Id, Todo]
    order: tuple[Id, ...]


WELCOME = {
    "share": Todo("Open this list in a second window"),
    "move": Todo("Drag a todo by its handle, or press the arrow keys on it"),
    "offline": Todo("Switch the network off, and go on"),
    "start": Todo("Start the server", done=True),
}


class TodoList(Thread[Todos]):
    """Checks the changes of pages; plait merges concurrent ones."""

    initial_state = Todos(WELCOME, tuple(WELCOME))
    events: ClassVar[Mapping[str, Any]] = {"cleared": int}

    def validate_state_change(self, next_state: Todos, source: Source) -> None:
        if sorted(next_state.order) != sorted(next_state.todos):
            raise Reject("the order must have each todo once", path="/order")
        if len(next_state.todos) > MAX_TODOS:
            raise Reject(f"a list has at most {MAX_TODOS} todos", path="/todos")
        titles: set[str] = set()
        for id, todo in next_state.todos.items():
            if not todo.done and todo.title.casefold() in titles:
                raise Reject(f"“{todo.title}” is on the list already", path=f"/todos/{id}/title")
            if not todo.done:
                titles.add(todo.title.casefold())

    @rpc
    async def clear_done(self) -> int:
        """Remove the done todos, emit an event, and return how many there were."""
        todos = {id: todo for id, todo in self.state.todos.items() if not todo.done}
        cleared = len(self.state.todos) - len(todos)
        self.set_state(Todos(todos, tuple(id for id in self.state.order if id in todos)))
        if cleared:
            self.emit("cleared", cleared)
        return cleared

    @rpc
    async def bring_back(self) -> bool:
        """Undo the last clearing, by any client; return whether there was one."""
        return await self.undo("server") is not None

    @rpc(name="undo")
    async def undo_own(self) -> bool:
        """Undo the caller's last change, unless others have changed the same place; return whether there was one."""
        connection = current().connection
        return connection is not None and await self.undo(connection) is not None


app = Plait(TodoList, static=DIST if DIST.is_dir() else None, store="sqlite:///todos.db")
