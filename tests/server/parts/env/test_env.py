"""Variables: where they are found, and how they are written."""

from contextlib import suppress

import pytest
from tests.server.parts.env.rooms import NO_CLOCK, VALUE, Room, env_of, make_app

from plait import Context, Env, Limits, NotFound, Principal, Secret, Thread, TooLarge
from plait.testing import Served
from plait.testing.asgi import HOST

# Where a variable is found


async def test_a_name_is_that_of_the_thread_before_the_user_before_the_app(url: str) -> None:
    async with make_app(url, env={"KEY": "app", "APP": "app"}) as app:
        room, ada = app.session(Room, "s1", user_id="ada"), app.user("ada")
        assert await room.call(Room.reveal, "KEY") == "app"
        await ada.env.set("KEY", "ada")
        await ada.env.set("USER", "ada")
        assert await room.call(Room.reveal, "KEY") == "ada"
        await room.part(Room.env).set("KEY", "room")
    async with make_app(url, env={"KEY": "app", "APP": "app"}) as app:
        room, ada = app.session(Room, "s1", user_id="ada"), app.user("ada")
        found = [await room.call(Room.reveal, name) for name in ("KEY", "USER", "APP")]
        assert found == ["room", "ada", "app"]
        assert [(await ada.env.get(name)).reveal() for name in ("KEY", "USER", "APP")] == ["ada", "ada", "app"]
        assert (await app.user("bob").env.get("KEY")).reveal() == "app"
        await room.part(Room.env).delete("KEY")
        assert await room.call(Room.reveal, "KEY") == "ada"
        await ada.env.delete("KEY")
        assert await room.call(Room.reveal, "KEY") == "app"


async def test_the_variables_of_a_user_are_not_looked_up_for_the_user_who_has_set_them() -> None:
    app = make_app()
    # Too long for the name of a thread, from which its user would be known.
    ada = "ada" * 50

    @app.agent("set", thread=Room)
    async def work(ctx: Context[Room]) -> None:
        await app.user(ada).env.set("KEY", "ada")

    app.prepare_serving(HOST, in_development=True)
    async with app:
        await app.user("bob").env.set("BOBS", "bob")
        async with Served(app, NO_CLOCK, app, "").connect(Room, "one", principal=Principal("bob")) as client:
            await client.run("set")
        assert (await app.user(ada).env.get("KEY")).reveal() == "ada"
        with pytest.raises(NotFound, match="BOBS"):
            await app.user(ada).env.get("BOBS")


async def test_a_name_that_is_set_nowhere_raises_and_names_it(url: str) -> None:
    async with make_app(url) as app:
        env = await env_of(app)
        with pytest.raises(NotFound, match="the variable MISSING is not set"):
            await env.get("MISSING")
        assert await env.type_of("MISSING") == "secret"
        with pytest.raises(NotFound, match="MISSING"):
            await app.user("ada").env.get("MISSING")
        assert [row async for row in app.threads()] == [], "reading creates no thread"


async def test_the_type_is_secret_unless_it_was_set_and_stays(url: str) -> None:
    async with make_app(url, env={"APP": "x"}) as app:
        for env in (await env_of(app), app.thread(Room, "two").part(Room.env), app.user("ada").env):
            await env.set("A", "1")
            assert await env.type_of("A") == "secret"
            await env.set("A", "2", type="text")
            await env.set("A", "3")
            assert (await env.type_of("A"), (await env.get("A")).reveal()) == ("text", "3")
            await env.set("A", "4", type="secret")
            await env.set("A", "5")
            assert await env.type_of("A") == "secret"
            assert await env.type_of("APP") == "secret"


# Writing


async def test_a_variable_is_stored_with_the_transaction_or_not_at_all(url: str) -> None:
    async with make_app(url) as app:
        env = await env_of(app)
        thread = env._actor.thread
        await env.set("A", "1")

        def fail() -> None:
            with thread.transaction():
                env.set("A", "2")
                thread.set_state({"n": 1})
                raise LookupError

        with pytest.raises(LookupError):
            fail()
        assert ((await env.get("A")).reveal(), thread.state) == ("1", {"n": 0})
        with thread.transaction():
            env.set("A", "2")
            env.set("B", "2")
            thread.set_state({"n": 2})
    async with make_app(url) as app:
        assert [(await (await env_of(app)).get(name)).reveal() for name in "AB"] == ["2", "2"]


async def test_a_run_stages_its_variables(url: str) -> None:
    app = make_app(url)
    seen: list[str] = []

    @app.agent("work", thread=Room)
    async def work(ctx: Context[Room]) -> None:
        env = ctx.thread.env
        env.set("A", "staged")
        seen.append((await env.get("A")).reveal())
        seen.append((await (await env_of(app)).get("B")).reveal())
        env.delete("B")
        if len(seen) == 2:
            raise LookupError

    async with app:
        env = await env_of(app)
        await env.set("B", "stored")
        with pytest.raises(LookupError):
            await app.run("work", thread="one")
        with pytest.raises(NotFound):
            await env.get("A")
        await app.run("work", thread="one")
        assert seen == ["staged", "stored"] * 2
        assert (await env.get("A")).reveal() == "staged"
        with pytest.raises(NotFound):
            await env.get("B")


async def test_a_transaction_of_a_run_replaces_what_the_run_has_staged(url: str) -> None:
    app = make_app(url)
    seen: list[str] = []

    @app.agent("work", thread=Room)
    async def work(ctx: Context[Room]) -> None:
        env = ctx.thread.env
        env.set("A", "staged")
        env.set("B", "staged")
        with suppress(LookupError), ctx.thread.transaction():
            env.set("B", "rolled back")
            raise LookupError
        with ctx.thread.transaction():
            env.set("A", "stored")
        seen.extend([(await env.get(name)).reveal() for name in "AB"])

    async with app:
        await app.run("work", thread="one")
        env = await env_of(app)
        assert seen == ["stored", "staged"]
        assert [(await env.get(name)).reveal() for name in "AB"] == seen


async def test_what_is_too_large_or_wrong_is_refused_and_changes_nothing() -> None:
    async with make_app(limits=Limits(env=200)) as app:
        env = await env_of(app)
        await env.set("A", "1")
        for other in (env, app.thread(Room, "one").part(Room.env), app.user("ada").env):
            with pytest.raises(TooLarge, match="the limit is 200") as caught:
                await other.set("B", VALUE * 20)
            assert VALUE not in str(caught.value)
            for name in ("", "1A", "a-b", "a b", "x" * 129, VALUE, "é"):
                with pytest.raises(ValueError, match="the name of a variable") as wrong:
                    await other.set(name, VALUE)
                assert VALUE not in str(wrong.value)
            for value in (1, None, b"x"):
                with pytest.raises(TypeError, match="the text of a Secret"):
                    await other.set("B", value)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="half of a surrogate pair"):
                await other.set("B", "\ud83d")
            with pytest.raises(ValueError, match="'text' or 'secret'"):
                await other.set("B", "1", type="other")  # type: ignore[arg-type]
        assert list(env._stored) == ["A"]
    for env_ in ({"1": "x"}, {"A": 1}, [("A", "x")]):
        with pytest.raises((TypeError, ValueError)):
            make_app(env=env_)
    with pytest.raises(TypeError, match="scoped must be a set"):
        Env(scoped="OWN")
    with pytest.raises((TypeError, RuntimeError)) as twice:
        type("Two", (Thread,), {"env": Env(), "other": Env()})
    assert "may have one Env" in str(twice.value.__cause__ or twice.value)


async def test_empty_and_long_values_are_kept() -> None:
    async with make_app() as app:
        env = await env_of(app)
        for value in ("", "grüße\n", "x" * 10_000):
            await env.set("A", Secret(value))
            assert await env.get("A") == Secret(value)
            assert await env.redact("nothing") == "nothing"
