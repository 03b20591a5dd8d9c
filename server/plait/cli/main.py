"""The command line: `plait serve`, `dev`, `demo`, `migrate`, `types`, `openapi`, and the commands for store files."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from plait.actor.client_types import NoTypes
from plait.app import Plait
from plait.cli import folders
from plait.cli.cluster import cluster_commands
from plait.cli.importing import import_commands
from plait.cli.loading import load_plait
from plait.cli.maintenance import back_up_store, check_store, restore_store
from plait.cli.options import LoadError, StoreName, Target, fail, find_folder, find_store, give_up, show_store
from plait.cli.serving import demo, dev, serve_command
from plait.cli.stores import store_commands
from plait.cli.task_commands import tasks
from plait.cli.thread_commands import threads
from plait.errors import MigrationFailed, PlaitError, operator_message
from plait.spelling import count, hide_password
from plait.state.state_history import StateHistory
from plait.state.types import StateType
from plait.store.thread_rows import ThreadKey
from plait.store.whole import WholeStore
from plait_schemas.export import find_differing, write

__all__ = ["main"]

cli = App(name="plait", help="Live, durable, shared state: serve threads, and inspect their store.")

cli.command(serve_command, name="serve")
cli.command(dev)
cli.command(demo)
cli.command(threads)
cli.command(tasks)
cli.command(store_commands)
cli.command(cluster_commands)
cli.command(import_commands)


@cli.command
def state(thread: Annotated[str, Parameter(help="The thread, as kind/name.")], store: StoreName = "plait.db") -> None:
    """Print the stored state of a thread as JSON. A server may have the store open."""
    kind, _, name = thread.partition("/")
    if not kind or not name:
        fail(f"{thread!r} is not a thread; use kind/name, such as game-room/room-1")
    key = ThreadKey(kind, name)

    async def show(file: WholeStore) -> None:
        async with file as opened:
            stored = await opened.load(key)
        if stored is None:
            shown = hide_password(store)
            fail(f"{shown} has no thread {key}; `plait threads {shown}` lists them")
        data = StateHistory(key, StateType(Any), stored).durable.json
        print(msgspec.json.format(data or b"null", indent=2).decode())

    show_store(show, store)


@cli.command
def check(store: StoreName = "plait.db") -> None:
    """Read a whole store and list the damaged places. A server may have the store open."""
    damaged, folder = False, find_folder(store)
    with _failing():
        files = () if folder else find_store(store).paths
        lines = asyncio.run(folders.check(folder)) if folder else chain.from_iterable(map(check_store, files))
        for line, is_damage in lines:
            damaged = damaged or is_damage
            print(line)
    if damaged:
        raise SystemExit(1)


@cli.command
def backup(
    store: StoreName, to: Annotated[Path, Parameter(help="The file or folder to create, which must not exist.")]
) -> None:
    """Copy a store to a new file or folder, or to new files if it has several. A server may have the store open."""
    with _failing():
        folder = find_folder(store)
        print(folders.back_up(folder, to) if folder else back_up_store(find_store(store), to))


@cli.command
def restore(
    backup: Annotated[Path, Parameter(help="A file or folder made by `plait backup`.")], store: StoreName
) -> None:
    """Replace a store with a backup; the old one is kept. No server may have the store open."""
    with _failing():
        folder = find_folder(store)
        print(folders.restore(backup, folder) if folder else restore_store(find_store(str(backup)), find_store(store)))


@contextmanager
def _failing() -> Iterator[None]:
    """Exit with an error in one line if something is wrong with a store."""
    try:
        yield
    except PlaitError as error:
        fail(operator_message(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")


@cli.command
def migrate(
    target: Target,
    *,
    dry_run: Annotated[
        bool,
        Parameter(help="Change nothing, and report what would fail. A server may have the store open.", negative=""),
    ] = False,
) -> None:
    """Migrate every stored thread of an app to its class's state_version. No server may have the store open."""
    try:
        app = load_plait(target)
        failures = asyncio.run(_migrate(app, dry_run=dry_run))
    except (LoadError, PlaitError) as error:
        give_up(error)
    if failures:
        raise SystemExit(1)


async def _migrate(app: Plait, *, dry_run: bool) -> int:
    outcomes = {"current": 0, "migrated": 0, "failed": 0, "lossy": 0, "unknown": 0}
    lost: Counter[tuple[str, str]] = Counter()
    async for key, outcome, error in app.migrate(dry_run=dry_run):
        outcomes[outcome] += 1
        if isinstance(error, MigrationFailed) and error.lost:
            lost.update((key.kind, place) for place in error.lost)
        elif error is not None:
            print(f"plait: {operator_message(error)}", file=sys.stderr)
    for (kind, place), number in sorted(lost.items()):
        threads_of_kind = f"{count(number, 'thread')} of {kind}"
        print(f"plait: {threads_of_kind} would lose {place}, which the type lacks", file=sys.stderr)
    if lost:
        print("plait: increase state_version, and add a @migrate function that converts these members", file=sys.stderr)
    line = f"{outcomes['current']} up to date, {outcomes['migrated']} {'to migrate' if dry_run else 'migrated'}"
    line += f", {outcomes['failed']} failed, {outcomes['unknown']} of kinds that the app does not have"
    print(f"{line}, {outcomes['lossy']} would lose members" if lost else line)
    return outcomes["failed"] + outcomes["lossy"]


@cli.command
def types(
    target: Target,
    *,
    out: Annotated[Path, Parameter(help="The folder to write to.")],
    check: Annotated[bool, Parameter(help="Write nothing, and fail if a file differs.", negative="")] = False,
) -> None:
    """Write the types of an app's threads for clients: plait-types.ts and, as JSON Schema, plait-types.json."""
    try:
        app = load_plait(target)
        files = app.types()
        if not check:
            write(files, out)
        elif paths := find_differing(files, out):
            command = f"plait types {target} --out {out}"
            fail(f"out of date: {', '.join(map(str, paths))}; run `{command}`")
    except (LoadError, NoTypes) as error:
        give_up(error)
    except OSError as error:
        fail(f"cannot write to {out}: {error.strerror or error}")


@cli.command
def openapi(
    target: Target,
    *,
    out: Annotated[Path | None, Parameter(help="The file to write, in place of the standard output.")] = None,
    title: Annotated[str, Parameter(help="The title of the document.")] = "plait",
    version: Annotated[str, Parameter(help="The version of the app's requests.")] = "1",
) -> None:
    """Print the OpenAPI 3.1 document of an app's endpoints, rpcs, runs and files, as JSON."""
    try:
        document = load_plait(target).openapi(title=title, version=version)
    except (LoadError, NoTypes) as error:
        give_up(error)
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    if out is None:
        print(text)
        return
    try:
        out.write_text(f"{text}\n")
    except OSError as error:
        fail(f"cannot write to {out}: {error.strerror or error}")


def main() -> None:
    """Run the command line."""
    cli()
