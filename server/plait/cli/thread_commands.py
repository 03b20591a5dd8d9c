"""`plait threads`: lists, shows, exports, imports and destroys threads, and shows those that are awake."""

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from plait.cli.awake_commands import awake, kick
from plait.cli.loading import load_lasting
from plait.cli.maintenance import describe_thread, destroy_in_file, destroy_thread
from plait.cli.options import LoadError, StoreName, Target, fail, find_store, give_up, open_shared, show_store
from plait.cli.output import open_output
from plait.errors import NotFound, PlaitError, operator_message
from plait.node.importing import LEFT_OUT
from plait.node.listing import INNER_KINDS
from plait.spelling import format_time, hide_password
from plait.store.export_file import export_thread
from plait.store.protocol import ThreadQuery, ThreadRow
from plait.store.thread_rows import ThreadKey
from plait.store.whole import WholeStore

__all__ = ["threads"]

threads = App(
    name="threads",
    help="List, show, export, import and destroy the threads of a store, and show those of a running server.",
)

threads.command(awake)
threads.command(kick)

Kind = Annotated[str, Parameter(help="The thread's kind.")]
Name = Annotated[str, Parameter(help="The thread's name.")]


@threads.default
@threads.command(name="list")
def list_threads(
    store: StoreName = "plait.db",
    *,
    kind: Annotated[str | None, Parameter(help="Only threads of this kind.")] = None,
    prefix: Annotated[str, Parameter(help="Only threads whose names begin with this.")] = "",
    all: Annotated[
        bool, Parameter(help="Also list the threads in which plait keeps kv and users.", negative="")
    ] = False,
) -> None:
    """List the threads of a store: version, when it was created and changed, name. A server may have the store open."""

    async def show(file: WholeStore) -> None:
        after: ThreadRow | None = None
        async with file as opened:
            while rows := await opened.threads(ThreadQuery(kind=kind, prefix=prefix, after=after)):
                for row in rows:
                    if all or kind in INNER_KINDS or row.key.kind not in INNER_KINDS:
                        times = f"{format_time(row.created_at)}  {format_time(row.changed_at)}"
                        print(f"{row.version:>10}  {times}  {row.key}")
                after = rows[-1]

    show_store(show, store)


@threads.command
def show(kind: Kind, name: Name, store: StoreName = "plait.db") -> None:
    """Print a stored thread as JSON, with its version and epoch. A server may have the store open."""

    async def print_it(file: WholeStore) -> None:
        async with file as opened:
            print(msgspec.json.format(await describe_thread(opened, ThreadKey(kind, name)), indent=2).decode())

    show_store(print_it, store)


@threads.command
def export(
    kind: Kind,
    name: Name,
    store: StoreName = "plait.db",
    *,
    out: Annotated[Path | None, Parameter(help="The file to write. By default it is printed.")] = None,
) -> None:
    """Write all of a thread, with its history, as lines of JSON. A server may have the store open."""

    async def write(file: WholeStore) -> None:
        async with file as opened, aclosing(export_thread(opened, ThreadKey(kind, name), leave_out=LEFT_OUT)) as lines:
            first = await anext(lines)  # Before the file is made: there may be no such thread.
            with open_output(out) as target:
                target.write(first)
                async for some in lines:
                    target.write(some)

    try:
        show_store(write, store)
    except OSError as error:
        fail(f"cannot write to {out}: {error.strerror or error}")


@threads.command(name="import")
def import_(
    target: Target,
    file: Annotated[Path, Parameter(help="A file made by `plait threads export`.")],
    *,
    name: Annotated[str | None, Parameter(help="Import it under this name.")] = None,
    replace: Annotated[bool, Parameter(help="Replace the thread if it exists.", negative="")] = False,
) -> None:
    """Store an exported thread in an app, after migrating and checking it. No server may have the store open."""

    async def store() -> str:
        app = load_lasting(target)
        async with app:
            handle = await app.import_thread(file, name=name, replace=replace)
            return str(handle._key)

    try:
        print(f"{asyncio.run(store())} is imported")
    except (LoadError, PlaitError) as error:
        give_up(error)
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror or error}")
    except Exception as error:  # `on_start` and `validate_state_change` may raise anything.
        fail(f"the thread's class raised {type(error).__name__}: {error}")


@threads.command
def destroy(
    kind: Kind,
    name: Name,
    store: StoreName = "plait.db",
    *,
    yes: Annotated[bool, Parameter(help="Do not ask for confirmation.", negative="")] = False,
) -> None:
    """Delete a thread without calling its on_destroyed. No server may have the store open."""
    shared, key = open_shared(store), ThreadKey(kind, name)
    files = find_store(store) if shared is None else None
    where = hide_password(store) if files is None else files.path_of(key)

    async def look(file: WholeStore) -> None:
        async with file as opened:
            if await opened.find(key) is None:
                raise NotFound(f"there is no thread {key} in {where}")

    show_store(look, store)
    if not yes:
        print(f"Delete {key} and all of its data? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            fail("nothing was deleted")
    try:
        if shared is not None:
            print(asyncio.run(destroy_thread(shared, key, str(where))))
        elif files is not None:
            print(asyncio.run(destroy_in_file(files, key)))
    except PlaitError as error:
        fail(operator_message(error))
