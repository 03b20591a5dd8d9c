"""Variables of a family: what a parent sets is handed down."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.server.parts.env.rooms import NEW, OLD, VALUE

from plait import Context, Env, Family, NotFound, Plait, Thread, rpc
from plait.limits import Limits
from plait.parts.env.env import ThreadEnv
from plait.store.thread_rows import ThreadKey
from plait_schemas.codec import encode_json

PATIENCE = 20.0


class Parent(Thread[None]):
    env = Env(scoped={"OWN"})
    family = Family()


class Child(Thread[None]):
    """Has variables by another name."""

    settings = Env(scoped={"CHILDS"})
    family = Family()


class Grandchild(Thread[None]):
    env = Env()
    family = Family()

    @rpc
    async def read(self, name: str) -> str:
        return (await self.env.get(name)).reveal()


class Simple(Thread[None]):
    """Has a family, and no variables."""

    family = Family()


CLASSES = (Parent, Child, Grandchild, Simple)


def make_app(store: Any = "memory://", *, secret: Any = NEW, **options: Any) -> Plait:
    return Plait(*CLASSES, store=store, secret=secret, **options)


async def thread_of(app: Plait, cls: type[Thread[Any]], name: str = "one") -> Any:
    return (await app._node.actor(ThreadKey(cls._kind.name, name))).thread


async def make_family(app: Plait) -> tuple[Parent, Child, Grandchild]:
    """Return a parent, its child, and its grandchild."""
    parent = await thread_of(app, Parent)
    await parent.family.spawn(Child, "one")
    child = await thread_of(app, Child)
    await child.family.spawn(Grandchild, "one")
    return parent, child, await thread_of(app, Grandchild)


async def read(env: ThreadEnv, name: str) -> str | None:
    """Return the value of a variable; None if it is not set."""
    try:
        return (await env.get(name)).reveal()
    except NotFound:
        return None


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def wait_for(env: ThreadEnv, name: str, value: str | None) -> None:
    """Wait until a variable has a value."""

    async def has_it() -> bool:
        return await read(env, name) == value

    await until(has_it)


async def test_living_children_and_grandchildren_see_what_a_parent_sets_except_scoped_names(url: str) -> None:
    async with make_app(url) as app:
        parent, child, grandchild = await make_family(app)
        await child.settings.set("CHILDS", "the child's")
        await wait_for(grandchild.env, "CHILDS", "the child's")
        for name in ("CHILDS", "OWN"):
            await parent.env.set(name, "the parent's")
        await parent.env.set("LABEL", "shown", type="text")
        await parent.env.set("KEY", VALUE)
        await wait_for(grandchild.env, "KEY", VALUE)  # The last one.
        for env in (child.settings, grandchild.env):
            assert [await read(env, name) for name in ("KEY", "LABEL", "OWN")] == [VALUE, "shown", "the parent's"]
            assert [await env.type_of(name) for name in ("KEY", "LABEL")] == ["secret", "text"]
            assert await read(env, "CHILDS") == "the child's"
        await parent.env.delete("KEY")
        await wait_for(grandchild.env, "KEY", None)
        assert await read(child.settings, "KEY") is None


async def test_a_terminated_child_is_skipped_and_its_children_are_not(url: str) -> None:
    async with make_app(url) as app:
        parent, child, grandchild = await make_family(app)
        await parent.env.set("KEY", "before")
        await wait_for(grandchild.env, "KEY", "before")
        await child.terminate()
        await parent.env.set("KEY", "after")
        await wait_for(grandchild.env, "KEY", "after")
        assert await read(child.settings, "KEY") == "before"
        await grandchild.terminate()
        await parent.env.set("KEY", "last")

        async def has_sent() -> bool:
            return not (parent.family._store.outbox or child.family._store.outbox)

        await until(has_sent)
        assert await read(grandchild.env, "KEY") == "after"


async def test_a_child_is_born_with_all_variables_of_its_parent_except_its_scoped_names(url: str) -> None:
    async with make_app(url, env={"APP": "app"}) as app:
        parent = await thread_of(app, Parent)
        for name in ("OWN", "CHILDS", "KEY"):
            await parent.env.set(name, name)
        with parent.transaction():
            parent.env.set("LATE", "late")
            spawned = parent.family.spawn(Child, "one")
            parent.env.set("LATER", "later")
        await spawned
        child = await thread_of(app, Child)
        await child.family.spawn(Grandchild, "one")
        grandchild = await thread_of(app, Grandchild)
        assert [await read(grandchild.env, name) for name in ("OWN", "KEY", "LATE")] == ["OWN", "KEY", "late"]
        await wait_for(grandchild.env, "LATER", "later")
        assert await read(child.settings, "CHILDS") is None
    async with make_app(url) as app:
        assert await app.thread(Grandchild, "one").call(Grandchild.read, "LATER") == "later"


async def test_what_is_written_after_a_birth_is_not_in_it_while_it_waits() -> None:
    async with make_app() as app:
        parent = await thread_of(app, Parent)
        await parent.env.set("KEY", "before")
        with parent.transaction():
            spawned = parent.family.spawn(Child, "one")
            (birth,) = parent.family._store.outbox.find("child/one").values()
            stored = encode_json(birth)
            parent.env.set("KEY", "after")
            parent.env.set("LATER", "later")
            assert encode_json(birth) == stored
        await spawned
        await wait_for((await thread_of(app, Child)).settings, "LATER", "later")


async def test_the_variables_of_a_run_are_handed_down_with_it_or_not_at_all(url: str) -> None:
    app = make_app(url)
    fails = [True, False]

    @app.agent("work", thread=Parent)
    async def work(ctx: Context[Parent]) -> None:
        value = "lost" if fails[0] else "kept"
        ctx.thread.env.set("KEY", value)
        ctx.thread.family.spawn(Child, f"{value} child")
        ctx.thread.env.set("OTHER", value)
        if fails.pop(0):
            raise LookupError

    async with app:
        parent, child, grandchild = await make_family(app)
        with pytest.raises(LookupError):
            await app.run("work", thread="one")
        await app.run("work", thread="one")
        await wait_for(grandchild.env, "OTHER", "kept")
        assert await read(child.settings, "KEY") == "kept"
        new = await parent.family.child("child/kept child")
        assert new is not None
        assert (await new.part(Child.settings).get("OTHER")).reveal() == "kept"
        assert len(parent.family.children) == 2


async def test_a_transaction_that_raises_hands_nothing_down() -> None:
    async with make_app() as app:
        parent, child, _ = await make_family(app)

        def fail() -> None:
            with parent.transaction():
                parent.env.set("KEY", "lost")
                raise LookupError

        with pytest.raises(LookupError):
            fail()
        assert not parent.family._store.outbox
        await parent.env.set("OTHER", "kept")
        await wait_for(child.settings, "OTHER", "kept")
        assert await read(child.settings, "KEY") is None


async def test_what_does_not_fit_besides_a_childs_own_variables_is_still_taken() -> None:
    async with make_app(limits=Limits(env=200)) as app:
        parent, child, grandchild = await make_family(app)
        await child.settings.set("CHILDS", "x" * 100)
        await parent.env.set("KEY", "x" * 100)
        await wait_for(child.settings, "KEY", "x" * 100)
        await wait_for(grandchild.env, "KEY", "x" * 100)


async def test_variables_are_handed_down_encrypted_and_read_after_a_rotation(url: str, tmp_path: Any) -> None:
    async with make_app(url, secret=OLD) as app:
        parent, _, grandchild = await make_family(app)
        # What waits for a child is in the store.
        await parent.env.set("KEY", VALUE)
        exported = [b"".join([lines async for lines in app.export_thread(cls, "one")]) for cls in CLASSES[:3]]
        await wait_for(grandchild.env, "KEY", VALUE)
    assert all(VALUE.encode() not in each for each in exported)
    async with make_app(url, secret=[NEW, OLD]) as app:
        assert await app.thread(Grandchild, "one").call(Grandchild.read, "KEY") == VALUE
        await (await thread_of(app, Parent)).env.set("KEY", "new")
        await wait_for((await thread_of(app, Grandchild)).env, "KEY", "new")
    async with make_app(url, secret=NEW) as app:
        assert await app.thread(Grandchild, "one").call(Grandchild.read, "KEY") == "new"


async def test_a_fork_hands_nothing_down() -> None:
    async with make_app() as app:
        parent, child, _ = await make_family(app)
        await parent.env.set("KEY", "before")
        await wait_for(child.settings, "KEY", "before")
        await app.fork_thread(Parent, "one", "fork")
        fork = await thread_of(app, Parent, "fork")
        assert await read(fork.env, "KEY") == "before"
        await fork.env.set("KEY", "the fork's")
        await parent.env.set("OTHER", "the parent's")
        await wait_for(child.settings, "OTHER", "the parent's")
        assert await read(child.settings, "KEY") == "before"


async def test_children_without_variables_take_none() -> None:
    async with make_app() as app:
        parent = await thread_of(app, Parent)
        await parent.env.set("KEY", "1")
        await parent.family.spawn(Simple, "one")
        await parent.env.set("KEY", "2")

        async def has_sent() -> bool:
            return not parent.family._store.outbox

        await until(has_sent)
        assert [child.reference for child in parent.family.children] == ["simple/one"]
