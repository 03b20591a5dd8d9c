"""`env = Env()`: variables such as keys and tokens, which a thread keeps encrypted."""

from base64 import b64encode
from collections.abc import Awaitable, Collection, Mapping, Sequence
from itertools import starmap
from typing import Any, ClassVar

import msgspec

from plait.actor.thread import ThreadActor
from plait.errors import TooLarge
from plait.parts.env.app_env import AppEnv
from plait.parts.env.secret import Secret, Variable, VariableType, check_variable
from plait.parts.env.user_env import UserEnv
from plait.parts.part import ALL, Part, check_writable, find_role
from plait.parts.remote import RemotePart
from plait.parts.stage import ItemsDraft, find_draft, use_draft
from plait.parts.written import STAGED, Written
from plait.state.commit import Commit
from plait.state.thread_records import Table, Values
from plait.state.transaction import Transaction
from plait.store.thread_rows import Record, RecordRange

__all__ = ["Env", "EnvDraft", "ThreadEnv"]


Variables = Mapping[str, Variable | None]
"""Changes of variables by name; None removes one."""


class Env(Part["ThreadEnv"]):
    """Declares variables: `env = Env()` in a Thread class gives each thread a `ThreadEnv` of that name.

    Variables with `scoped` names are the thread's own: it does not take them from its parent.
    """

    role: ClassVar = "env"
    is_only: ClassVar = True
    reading: ClassVar = frozenset({"get", "type_of", "redact", "find", "find_all", "own", "has_for_child"})
    inner: ClassVar = frozenset({"find", "find_all", "own", "put", "has_for_child", "seal"})

    def __init__(self, *, scoped: Collection[str] = ()) -> None:
        super().__init__()
        if isinstance(scoped, str):
            raise TypeError("scoped must be a set of names, not a str")
        for name in scoped:
            check_variable(name)
        self.scoped = frozenset(scoped)

    def bind(self, actor: ThreadActor) -> "ThreadEnv":
        return ThreadEnv(actor, self.name, self.scoped)

    def bind_remote(self, remote: RemotePart) -> UserEnv:
        return UserEnv(remote.services[AppEnv], remote.call)

    def ranges(self) -> list[RecordRange]:
        return [RecordRange(self.name, limit=ALL)]

    async def load(self, actor: ThreadActor, records: Sequence[Sequence[Record]]) -> None:
        self.of(actor)._load(records[0])

    def hand_down(self, actor: ThreadActor) -> Variables:
        return dict(self.of(actor)._show())

    def take_item(self, actor: ThreadActor, body: Mapping[str, Any]) -> None:
        self.of(actor)._take(msgspec.convert(body, dict[str, Variable | None]))


class ThreadEnv:
    """The variables of one thread: names and texts, together at most `Limits.env` bytes (64 KiB), encrypted.

    A name that the thread has not set is looked up for its user, `app.user(thread.user_id).env`, then in the app,
    `Plait(env={…})`, and then in the answering agent and prompt. The methods that write do so when they are called, and
    awaiting the result waits until it is durable. In a run of an agent, writes are staged; in the block of a
    transaction, they are stored with it. They raise what `set_state` raises, and RuntimeError without PLAIT_SECRET.
    """

    def __init__(self, actor: ThreadActor, part: str, scoped: Collection[str]) -> None:
        self._actor = actor
        # The names that are not taken from a parent.
        self._scoped = scoped
        self._app = actor.use_service(AppEnv)
        # The variables that are stored, or about to be.
        self._stored = Values[str, Variable]()
        self._table = Table(part, "", Variable, self._stored.set)

    # Reading

    async def get(self, name: str) -> Secret:
        """Return the value of a variable. Raises NotFound if it is set nowhere, CorruptThread and StoreError."""
        return self._app.open(name, await self._find_stored(name), self._find_others())

    async def type_of(self, name: str) -> VariableType:
        """Return `text` for a variable that may be shown; `secret` for any other, even if it is set nowhere."""
        found = await self._find_stored(name)
        return "secret" if found is None else found.type

    async def redact(self, text: str, *, most: int | None = None) -> str:
        """Return a text, or its first `most` characters, with `***` in place of all secrets that `get` returns."""
        return await self._app.redact(text, await self._find_all_stored(), self._find_others(), most=most)

    # Writing

    def set(self, name: str, value: str | Secret, *, type: VariableType | None = None) -> Awaitable[None]:
        """Set a variable of the thread. Without `type`, it keeps its type; a new one is a `secret`.

        Raises TypeError, ValueError and TooLarge.
        """
        check_variable(name, type)
        return self.put(name, self._app.seal(name, value), type)

    def delete(self, name: str) -> Awaitable[None]:
        """Remove a variable of the thread, if it is set there."""
        check_variable(name)
        check_writable(self._actor)
        return self._change({name: None}) if name in self._show() else STAGED

    # Encrypted, for other processes and threads

    async def find(self, name: str) -> Variable | None:
        """Return a variable; None if it is set nowhere, or only in the app."""
        return await self._find_stored(name) or self._app.seal_others(self._find_others()).get(name)

    async def find_all(self) -> dict[str, Variable]:
        """Return all variables, except those of the app."""
        return {**self._app.seal_others(self._find_others()), **await self._find_all_stored()}

    async def has_for_child(self, name: str, *, is_scoped: bool) -> bool:
        """Whether a new child would find a variable; scoped variables are not handed down."""
        found = (not is_scoped and name in await self.own()) or self._app.has(name)
        return found or name in await self._read_user()

    def seal(self, name: str, value: str | Secret) -> str:
        """Return an encrypted value as base64. Raises TypeError and ValueError."""
        check_variable(name)
        return b64encode(self._app.seal(name, value)).decode()

    async def own(self) -> dict[str, Variable]:
        """Return the variables of the thread."""
        await self._actor.state.wait_for_shown()
        return dict(self._show())

    def put(self, name: str, data: bytes, type: VariableType | None) -> Awaitable[None]:
        """Set a variable to an encrypted value."""
        check_variable(name, type)
        check_writable(self._actor)
        known = self._show().get(name)
        return self._change({name: Variable(type or ("secret" if known is None else known.type), data)})

    # Inside

    def _load(self, records: Sequence[Record]) -> None:
        """Read the stored variables of a waking thread. Raises CorruptThread."""
        self._stored.update(self._table.load(records, self._actor.key))

    async def _find_stored(self, name: str) -> Variable | None:
        """Return a variable of the thread, or else of its user; None if neither has it."""
        check_variable(name)
        return (await self.own()).get(name) or (await self._read_user()).get(name)

    async def _find_all_stored(self) -> dict[str, Variable]:
        return {**await self._read_user(), **await self.own()}

    def _find_others(self) -> Mapping[str, str]:
        """Return the variables of the answering agent and prompt."""
        find: Any = self._actor.kind.find_agents
        others: Mapping[str, str] = {} if find is None else find(self._actor).find_variables()
        return others

    async def _read_user(self) -> Mapping[str, Variable]:
        user = self._actor.state.history.user
        return {} if user is None else await self._app.read_user(user)

    def _show(self) -> Mapping[str, Variable]:
        """Return the variables as the calling code sees them: in a run, with the staged ones."""
        self._actor.state.end_abandoned()
        draft = find_draft(self._actor, self, EnvDraft)
        return self._stored if draft is None else _apply(self._stored, draft.changes)

    def _change(self, changes: Variables) -> Awaitable[None]:
        """Change variables: each change comes here, or from a draft to `_store`."""
        transaction = self._actor.state.find_own_transaction()
        draft = use_draft(self._actor, self, EnvDraft, lambda _: EnvDraft(self._actor, self._store_all))
        if draft is None:
            return Written(self._store(changes), transaction)
        if transaction is None:
            self._check_size(_apply(self._show(), changes))
            draft.add(changes)
            return STAGED
        written = Written(self._store(changes), transaction)
        draft.forget(changes)  # The staged changes would replace the stored ones when the run ends.
        return written

    def _store_all(self, changes: Sequence[Variables]) -> None:
        self._store(_merge(changes))

    def _store(self, changes: Variables) -> Commit:
        self._actor.state.check_open()
        self._check_size(_apply(self._stored, changes))
        return self._write(changes)

    def _take(self, changes: Variables) -> None:
        """Apply the changes of the parent, except those of scoped names; a terminated thread only hands them down."""
        changes = {name: each for name, each in changes.items() if name not in self._scoped}
        # The parent checks the size of its changes: it would send refused ones again and again.
        if self._actor.terminated_at is not None:
            self._tell_children(changes)
        elif changes:
            self._write(changes)

    def _write(self, changes: Variables) -> Commit:
        """Store changes, and tell the children of them, in one write."""
        with Transaction(self._actor.state, self._actor.key):
            commit = self._actor.records.put(starmap(self._table.change, changes.items()))
            self._tell_children(changes)
        return commit

    def _tell_children(self, changes: Variables) -> None:
        if (family := find_role(type(self._actor.thread), "family")) is not None:
            family.of(self._actor).tell_children(Env.role, changes)

    def _check_size(self, variables: Mapping[str, Variable]) -> None:
        limit, size = self._actor.limits.env, sum(len(name) + len(each.data) for name, each in variables.items())
        if size > limit:
            what = f"the variables of {self._actor.key} would have {size} bytes; the limit is {limit}"
            raise TooLarge(what, limit="env")


class EnvDraft(ItemsDraft[Variables]):
    """The variables that one run has changed."""

    @property
    def changes(self) -> Variables:
        """All changes."""
        return _merge(self.items)

    def forget(self, names: Collection[str]) -> None:
        """Forget the changes of some names, as later ones are stored; if these are rolled back, restage the changes."""
        changes = self.changes
        if forgotten := {name: each for name, each in changes.items() if name in names}:
            self._actor.records.write([], undo=lambda: self._stage_again([forgotten]))
            left = {name: each for name, each in changes.items() if name not in names}
            self.items = [left] if left else []


def _merge(changes: Sequence[Variables]) -> Variables:
    return {name: each for some in changes for name, each in some.items()}


def _apply(variables: Mapping[str, Variable], changes: Variables) -> Mapping[str, Variable]:
    return {name: each for name, each in {**variables, **changes}.items() if each is not None}
