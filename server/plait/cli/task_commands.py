"""`plait tasks`: lists the runs of tasks in a store, and retries or cancels one of a running server."""

from collections.abc import AsyncIterator
from typing import Annotated, Final, Literal

import msgspec
from cyclopts import App, Parameter

from plait.cli.awake_commands import Url, ask_server, print_table
from plait.cli.options import StoreName, fail, show_store
from plait.errors import NotFound
from plait.parts.part import ALL
from plait.parts.tasks.ended import ENDED, FAILED, decode_failed
from plait.parts.tasks.rows import TaskRun, decode_ended, decode_row
from plait.parts.tasks.running import ROWS
from plait.spelling import format_time
from plait.store.protocol import Store, ThreadQuery, ThreadRow
from plait.store.thread_rows import RecordRange, ThreadKey
from plait.store.whole import WholeStore
from plait.web.operators import ChangedRun, ChangeRun

__all__ = ["tasks"]

tasks = App(name="tasks", help="List the runs of tasks in a store, and retry or cancel one of a running server.")

Kind = Annotated[str, Parameter(help="The thread's kind.")]
Name = Annotated[str, Parameter(help="The thread's name.")]
Id = Annotated[str, Parameter(name="RUN", help="The id of the run.")]

_HEAD: Final = ("thread", "run", "task", "status", "begun", "error or last status")
# The characters of an error or a status that are shown.
_MOST_SHOWN: Final = 100


@tasks.default
@tasks.command(name="list")
def list_runs(
    kind: Kind,
    name: Annotated[str | None, Parameter(help="The thread. Without it, the failed runs of all of them.")] = None,
    *,
    store: StoreName = "plait.db",
    part: Annotated[str, Parameter(help="The attribute of the class that has the tasks.")] = "tasks",
    json: Annotated[bool, Parameter(help="Print a line of JSON for each run.", negative="")] = False,
) -> None:
    """List the runs of a thread, or the failed runs of all threads of a kind. A server may have the store open."""

    async def show(file: WholeStore) -> None:
        async with file as opened:
            runs = _find_failed(opened, kind, part) if name is None else _read_runs(opened, ThreadKey(kind, name), part)
            found = [each async for each in runs]
        if json:
            for key, run in found:
                print(msgspec.json.encode({"thread": str(key), "run": run}).decode())
        else:
            print_table([_HEAD, *(_describe(key, run) for key, run in found)])

    show_store(show, store)


@tasks.command
def retry(kind: Kind, name: Name, id: Id, url: Url = "http://localhost:8000") -> None:
    """Continue a failed or cancelled run after its last finished step. This needs a running server: its code goes on.

    PLAIT_OPERATOR_TOKEN is the server's operator_token.
    """
    _change("retry", f"{kind}/{name}", id, url)


@tasks.command
def cancel(kind: Kind, name: Name, id: Id, url: Url = "http://localhost:8000") -> None:
    """Cancel a run that is not over. This needs a running server: its code is cancelled.

    PLAIT_OPERATOR_TOKEN is the server's operator_token.
    """
    _change("cancel", f"{kind}/{name}", id, url)


def _change(do: Literal["retry", "cancel"], thread: str, id: str, url: str) -> None:
    if not ask_server(url, "tasks", ChangedRun, ChangeRun(thread, id, do)).changed:
        fail(f"{thread} has no run {id} that {'has failed or was cancelled' if do == 'retry' else 'is not over'}")
    print(f"{id} is {'waiting' if do == 'retry' else 'cancelled'}")


async def _read_runs(store: Store, key: ThreadKey, part: str) -> AsyncIterator[tuple[ThreadKey, TaskRun]]:
    if await store.find(key) is None:
        raise NotFound(f"there is no thread {key}")
    for row in await store.records(key, RecordRange(part, ROWS, limit=ALL)):
        yield key, decode_row(row.value or b"").show()
    for ended in await store.records(key, RecordRange(part, ENDED, limit=ALL)):
        yield key, decode_ended(ended.value or b"").show()


async def _find_failed(store: Store, kind: str, part: str) -> AsyncIterator[tuple[ThreadKey, TaskRun]]:
    """Find the failed runs of all threads: one record of each tells their ids."""
    after: ThreadRow | None = None
    while rows := await store.threads(ThreadQuery(kind=kind, after=after)):
        keys = [row.key for row in rows]
        for key, (ids,) in zip(keys, await store.records_of_each(keys, (part, FAILED)), strict=True):
            for id in decode_failed(ids or b"[]"):
                if (run := await store.record(key, part, ENDED + id)) is not None:
                    yield key, decode_ended(run).show()
        after = rows[-1]


def _describe(key: ThreadKey, run: TaskRun) -> tuple[str, ...]:
    told = run.error or ("" if run.value is None else msgspec.json.encode(run.value).decode())
    # A terminal would obey unprintable characters.
    told = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in " ".join(told.split())[:_MOST_SHOWN])
    return str(key), run.id, run.name, run.status, format_time(run.created_at), told
