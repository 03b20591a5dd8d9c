"""The methods of an app for its threads."""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar, overload

import msgspec

from plait.actor.client_types import make_types_files
from plait.actor.handle import Handle
from plait.actor.kind import Kind
from plait.actor.openapi import make_openapi
from plait.actor.thread import Thread
from plait.cluster.use import check_unused
from plait.errors import PlaitError
from plait.kv.user_names import user_prefix
from plait.node.forking import Fork
from plait.node.importing import Import, read_header
from plait.node.listing import INNER_KINDS
from plait.node.node import Node
from plait.node.remote_requests import ListThreads
from plait.parts.files.thread_files import find_files
from plait.state.migrations import Outcome, migrate_all
from plait.store.protocol import Order, Store, ThreadKey, ThreadRow
from plait_schemas.encoding import encode_given

__all__ = ["ThreadHost"]

T = TypeVar("T", bound=Thread[Any])

_NO_METADATA: Final[Mapping[str, Any]] = MappingProxyType({})


class ThreadHost:
    """Finds, lists, copies, migrates and destroys the threads of an app. The class that inherits it sets its parts."""

    _node: Node
    _store: Store
    _kinds: list[Kind]
    # What `openapi` has made, and of how many methods.
    _openapi: tuple[int, bytes] | None = None

    def thread(self, kind: type[T], name: str) -> Handle[T]:
        """Return a handle of a thread, for server code. Raises NotFound."""
        return self._node.handle(kind, name)

    async def threads(
        self,
        *,
        kind: type[Thread[Any]] | str | None = None,
        user_id: str | msgspec.UnsetType | None = msgspec.UNSET,
        metadata: Mapping[str, Any] = _NO_METADATA,
        prefix: str = "",
        order: Order = "name",
        after: ThreadRow | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[ThreadRow]:
        """Iterate over the stored threads: those of a kind, whose names begin with `prefix`.

        They are in the order of kind and name, or those that were created or changed last come first. With `user_id`,
        only the threads of a user (None: of anonymous sessions): those of sessions, and those that were created for
        the user. With `metadata`, only threads whose values have these members in their metadata; this reads each
        thread. `after` is the last row of an earlier listing in the same order, and `limit` the most threads to list.
        The store is read a page at a time, so threads that are created, changed or destroyed during the iteration may
        be missing. Raises StoreError, and NotFound for an empty user id.
        """
        query = _make_query(kind, user_id, metadata=metadata, prefix=prefix, order=order, after=after, limit=limit)
        async for listed in self._node.everywhere.list_threads(query):
            yield listed.row

    async def sessions(
        self, kind: type[Thread[Any]] | str, user_id: str | None
    ) -> AsyncIterator[tuple[str | None, str]]:
        """Iterate over the sessions of a user (None: anonymous ones) in threads of a kind, as user and session ids.

        A session with a very long id is listed after an agent has run in it.
        """
        async for listed in self._node.everywhere.list_threads(_make_query(kind, user_id, has_sessions=True)):
            if listed.session is not None:
                yield listed.session

    async def export_thread(self, kind: type[Thread[Any]] | str, name: str) -> AsyncIterator[bytes]:
        """Iterate over the lines of a file with all of a thread, some at once, which `import_thread` reads.

        They are of the moment at which the first of them is read, with all changes made before, however long the
        others take; what a run has not committed is not in them, nor is the history. The thread is not woken for that.
        Raises NotFound when there is no such thread, StoreError and CorruptThread.
        """
        async with aclosing(self._node.everywhere.export_thread(ThreadKey(_kind_name(kind), name))) as found:
            async for lines in found:
                yield lines

    async def import_thread(
        self, source: Path | bytes, *, name: str | None = None, replace: bool = False
    ) -> Handle[Any]:
        """Create a thread from a file, or the bytes, of `export_thread`, under another name if one is given.

        A state of an older `state_version` is migrated. Fields and parts that the class lacks are dropped, and missing
        fields get their defaults. The whole file is read and checked first, then it is read again and stored; until
        that is complete, the thread cannot be used (Unavailable), and after a crash nothing is left of it. With
        `replace`, an existing thread is stopped and deleted before it is stored, and its clients connect again.

        Raises InvalidState for a file that is not a complete thread of the class, NotFound for an unknown kind,
        Conflict if the thread exists, TooLarge, NewerState, MigrationFailed, StoreError, OSError, and what
        `validate_state_change` raises.
        """
        header = read_header(source)
        work = Import(source, self._node.kind(header.kind), header, name, self._node.limits)
        await self._node.everywhere.import_thread(work, replace=replace)
        return self._node.handle(work.kind.cls, work.key.name)

    @overload
    async def fork_thread(self, kind: type[T], name: str, new_name: str, *, at: int | None = None) -> Handle[T]: ...
    @overload
    async def fork_thread(self, kind: str, name: str, new_name: str, *, at: int | None = None) -> Handle[Any]: ...
    async def fork_thread(
        self, kind: type[Thread[Any]] | str, name: str, new_name: str, *, at: int | None = None
    ) -> Handle[Any]:
        """Create a thread from another one: with its parts, and with its state, or with that of the version `at`.

        The parts are as they are when the fork begins, with all changes made before; what a run has not committed is
        not in them, nor are the history and the termination. Scheduled effects and queued messages stay with the
        original, as both threads would do them. The original is not woken, and can be used during the fork; later
        changes of one are not in the other. Until the fork is complete, it cannot be used (Unavailable), and after a
        crash nothing is left of it.

        Raises NotFound if there is no such thread or if the version is not kept, Conflict if a thread has the new name,
        InvalidState for a version whose state had another type, MigrationFailed, NewerState, StoreError and
        CorruptThread.
        """
        found = self._node.kind(_kind_name(kind))
        work = Fork(found, name, new_name, at=at, limits=self._node.limits)
        await self._node.everywhere.fork_thread(work, name, at)
        return self._node.handle(found.cls, work.key.name)

    async def destroy(self, kind: type[Thread[Any]] | str, name: str) -> None:
        """Destroy a thread, after the turns before: run `on_destroyed`, delete all of its data and close its sockets.

        When this returns, the deletion is durable. A thread that cannot be loaded is deleted without `on_destroyed`,
        and so is a thread of a kind, given as a str, that the app does not have.

        Raises NotFound if there is no such thread; StoreError if it could not be deleted (it is unchanged then, but
        after Indeterminate it may be deleted); Unavailable if the server shuts down first; and Readonly in an rpc that
        a readonly client of the thread has called. A sleeping thread is woken for `on_destroyed`: if its `on_start`
        raises, that exception is raised, and the thread is not destroyed.
        """
        await self._node.everywhere.destroy(ThreadKey(_kind_name(kind), name))

    async def migrate(self, *, dry_run: bool = False) -> AsyncIterator[tuple[ThreadKey, Outcome, PlaitError | None]]:
        """Migrate every stored thread to the `state_version` of its class, and yield the outcome of each.

        The app must not be running: raises Unavailable if a server uses a shared store. A dry run writes nothing, and a
        server may have the store open during one.
        """
        store = self._store
        # A store that can be read while a server has it open.
        if dry_run and (reader := getattr(store, "reader", None)) is not None:
            store = reader()
        async with store:
            if not dry_run:
                await check_unused(store)
            async for each in migrate_all(store, self._node.kinds, dry_run=dry_run):
                if each[0].kind not in INNER_KINDS:
                    yield each

    def types(self) -> dict[str, str]:
        """Return the types of the threads for clients: the files that `plait types` writes, by name.

        Raises NoTypes for a type that JSON Schema cannot describe.
        """
        return make_types_files(self._kinds)

    def openapi(self, *, title: str = "plait", version: str = "1") -> dict[str, Any]:
        """Return the OpenAPI 3.1 document of the app's endpoints, rpcs, runs and files, as JSON values.

        Raises NoTypes for a type that JSON Schema cannot describe.
        """
        methods = sum(len(kind.methods) for kind in self._kinds)  # Agents may have been added.
        if self._openapi is None or self._openapi[0] != methods:
            with_files = {kind.name for kind in self._kinds if find_files(kind.cls) is not None}
            self._openapi = methods, make_openapi(self._kinds, with_files=with_files)
        document: dict[str, Any] = msgspec.json.decode(self._openapi[1])
        return document | {"info": {"title": title, "version": version}}


def _make_query(
    kind: type[Thread[Any]] | str | None,
    user_id: str | msgspec.UnsetType | None,
    *,
    metadata: Mapping[str, Any] = _NO_METADATA,
    **options: Any,
) -> ListThreads:
    user = None if isinstance(user_id, msgspec.UnsetType) else user_id
    user_prefix(user)  # Raises for an empty id.
    return ListThreads(
        kind=_kind_name(kind),
        is_of_user=user_id is not msgspec.UNSET,
        user_id=user,
        metadata=encode_given(dict(metadata)),
        **options,
    )


@overload
def _kind_name(kind: type[Thread[Any]] | str) -> str: ...
@overload
def _kind_name(kind: None) -> None: ...
def _kind_name(kind: type[Thread[Any]] | str | None) -> str | None:
    return kind if isinstance(kind, str) or kind is None else kind._kind.name
