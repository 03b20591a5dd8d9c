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
from plait.parts.messages.thread_messages import find_chat
from plait.state.migrations import Outcome, migrate_all
from plait.store.protocol import Order, Store, ThreadRow
from plait.store.thread_rows import ThreadKey
from plait_schemas.encoding import encode_given

__all__ = ["ThreadHost"]

T = TypeVar("T", bound=Thread[Any])

_NO_METADATA: Final[Mapping[str, Any]] = MappingProxyType({})


class ThreadHost:
    """Finds, lists, copies, migrates and destroys the threads of an app. The class that inherits it sets its parts."""

    _node: Node
    _store: Store
    _kinds: list[Kind]
    # The last result of `openapi`, and the number of methods in it.
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
        """Iterate over the stored threads, of one `kind` if given, whose names begin with `prefix`.

        The order is by kind and name, or the latest creation or change first. With `user_id`, only threads of that user
        are listed: the sessions, and the threads that were created for the user; None stands for anonymous sessions.
        With `metadata`, only threads with a value whose metadata has these members are listed; this reads each thread.
        `after` is the last row of an earlier listing in the same order, and `limit` the maximum number of threads. The
        store is read a page at a time, so threads that are created, changed or destroyed during the iteration may be
        missing. Raises StoreError, and NotFound for an empty user id.
        """
        query = _make_query(kind, user_id, metadata=metadata, prefix=prefix, order=order, after=after, limit=limit)
        async for listed in self._node.everywhere.list_threads(query):
            yield listed.row

    async def sessions(
        self, kind: type[Thread[Any]] | str, user_id: str | None
    ) -> AsyncIterator[tuple[str | None, str]]:
        """Iterate over the sessions of a user (None: anonymous ones) in threads of a kind, as user and session ids.

        A session with a very long id is listed only after an agent has run in it.
        """
        async for listed in self._node.everywhere.list_threads(_make_query(kind, user_id, has_sessions=True)):
            if listed.session is not None:
                yield listed.session

    async def export_thread(self, kind: type[Thread[Any]] | str, name: str) -> AsyncIterator[bytes]:
        """Iterate over the lines of a file with all of a thread and its history, which `import_thread` reads.

        They are of the moment at which the first of them is read, with all changes made before, however long the
        others take; what a run has not committed is not in them. The thread is not woken for that.
        Raises NotFound when there is no such thread, StoreError and CorruptThread.
        """
        async with aclosing(self._node.everywhere.export_thread(ThreadKey(_kind_name(kind), name))) as found:
            async for lines in found:
                yield lines

    async def import_thread(
        self, source: Path | bytes, *, name: str | None = None, replace: bool = False
    ) -> Handle[Any]:
        """Create a thread from a file, or the bytes, of `export_thread`, under another name if one is given.

        Its history goes on in a new epoch. A state of an older `state_version` is migrated. Fields and parts that the
        class lacks are dropped, and missing fields get their defaults. The whole file is read and checked first, then
        it is read again and stored; until that is complete, the thread cannot be used (Unavailable), and after a crash
        nothing is left of it. With `replace`, an existing thread is stopped and deleted before it is stored, and its
        clients connect again.

        Raises InvalidState for a file that is not a complete thread of the class, NotFound for an unknown kind,
        Conflict if the thread exists, TooLarge, NewerState, MigrationFailed, StoreError, OSError, and the error of
        `validate_state_change`.
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
        """Create a thread from another one: with its parts, and with its state, or its state at the version `at`.

        The parts are copied as they are at the beginning, with all earlier changes, but without uncommitted writes of a
        run, the history and the termination. Scheduled effects and queued messages stay with the original, as otherwise
        both threads would handle them. The original is not woken, and can be used during the fork; later changes of one
        thread do not reach the other. Until the fork is complete, it cannot be used (Unavailable), and a crash leaves
        nothing of it.

        Raises NotFound if there is no such thread or if the version is not kept, Conflict if a thread has the new name,
        InvalidState for a version whose state had another type, MigrationFailed, NewerState, StoreError and
        CorruptThread.
        """
        found = self._node.kind(_kind_name(kind))
        work = Fork(found, name, new_name, at=at, limits=self._node.limits)
        await self._node.everywhere.fork_thread(work, name, at)
        return self._node.handle(found.cls, work.key.name)

    async def destroy(self, kind: type[Thread[Any]] | str, name: str) -> None:
        """Destroy a thread, after its earlier turns: run `on_destroyed`, delete all of its data and close its sockets.

        When this returns, the deletion is durable. A thread that cannot be loaded is deleted without `on_destroyed`. So
        is a thread of a kind that the app does not have, given as a str.

        Raises NotFound if there is no such thread; StoreError if it could not be deleted (it is unchanged, except that
        after Indeterminate it may be gone); Unavailable if the server shuts down first; and Readonly in an rpc that a
        readonly client of the thread has called. A sleeping thread is woken for `on_destroyed`: if its `on_start`
        raises, that exception is raised, and the thread is not destroyed.
        """
        await self._node.everywhere.destroy(ThreadKey(_kind_name(kind), name))

    async def migrate(self, *, dry_run: bool = False) -> AsyncIterator[tuple[ThreadKey, Outcome, PlaitError | None]]:
        """Migrate every stored thread to the `state_version` of its class, and yield the outcome of each.

        The app must not be running: raises Unavailable if a server uses a shared store. A dry run writes nothing, so a
        server may have the store open.
        """
        store = self._store
        # Some stores can be read while a server has them open.
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
            with_chats = {kind.name for kind in self._kinds if find_chat(kind.cls) is not None}
            self._openapi = methods, make_openapi(self._kinds, with_files=with_files, with_chats=with_chats)
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
    user_prefix(user)  # Raises NotFound for an empty id.
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
