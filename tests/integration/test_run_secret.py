"""The secret that signs the ids of agents' threads: which apps need one, what it is, and that it never leaks."""

import re
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.integration.agents_app import make_app
from tests.integration.socket_client import http
from tests.integration.test_cli import address_of, command, complaint
from tests.integration.test_http import error_of
from tests.ports import hold_port
from tests.running import Process, running
from tests.server.recorder import Recorder

from plait import Plait, Thread
from plait.agents.thread_ids import Signer
from plait.settings import SettingError, Settings

APP = """
from plait import Plait, Thread

class Room(Thread):
    pass

app = Plait(Room, store="memory://")

@app.agent("name", thread=Room)
async def name(ctx):
    return ctx.thread.name
"""
SECRET = "keep-this-to-yourself"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agents.py").write_text(APP)
    return tmp_path


@pytest.fixture
def free_port() -> str:
    held = hold_port()
    port = str(held.getsockname()[1])
    held.close()
    return port


# Who needs one


def test_serve_refuses_to_start_agents_without_a_secret(folder: Path) -> None:
    line = complaint(folder, "serve", "agents:app", "--port", "0")
    assert 'set PLAIT_SECRET to the output of `python -c "import secrets; print(secrets.token_hex(32))"`' in line


async def test_serve_signs_with_the_secret_of_the_environment(folder: Path) -> None:
    with Process("agents:app", cwd=folder, environment={"PLAIT_SECRET": SECRET}) as server:
        async with http(server.address) as web:
            id, _, signature = (await web.post("/run/name")).headers["x-thread-id"].partition(";")
            assert signature == Signer([SECRET]).sign(id)
            await web.post("/run/name", headers={"x-thread-id": f"{id};x"})
    log = server.log.read_text()
    assert "the signature of thrd_" in log
    assert SECRET not in log
    assert id not in log


async def test_dev_needs_no_secret_and_says_so_once(folder: Path, free_port: str) -> None:
    dev = command(folder, "dev", "agents:app", "--port", free_port)
    async with dev as process, http(await address_of(process)) as web:
        assert [(await web.post("/run/name")).status_code for _ in range(2)] == [200, 200]
    assert (folder / "command.log").read_text().count("the secret of `plait dev`") == 1


async def test_other_servers_need_a_secret_too_and_code_without_a_server_does_not() -> None:
    app = make_app(secret=()).app
    with pytest.raises(SettingError, match="set PLAIT_SECRET"):
        async with app.lifespan():
            pass
    async with app:
        assert await app.run("count") == 1


async def test_without_a_secret_and_a_lifespan_a_run_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    chat = make_app(secret=())
    async with chat.app, running(Starlette(routes=[Mount("/live", chat.app)])) as address, http(address) as web:
        assert error_of(await web.post("/live/run/count")) == (500, "internal")
        assert "PLAIT_SECRET" in caplog.text
        assert await chat.threads() == []


async def test_a_mounted_app_runs_agents_below_its_path() -> None:
    chat = make_app()
    outer = Starlette(routes=[Mount("/live", chat.app)], lifespan=chat.app.lifespan)
    async with running(outer) as address, http(address) as web:
        assert [(await web.post("/live/run/count")).json() for _ in range(2)] == [1, 2]
        assert (await web.post("/live/threads/room/one/run/count")).json() == 1


def test_an_app_without_agents_needs_none() -> None:
    class Room(Thread[None]):
        pass

    Plait(Room, store="memory://").check_settings()


# What it is


def test_several_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_app(secret="new, old,").app.settings.secret == ("new", "old")
    assert make_app(secret=["new", "old"]).app.settings.secret == ("new", "old")
    monkeypatch.setenv("PLAIT_SECRET", ",")
    assert make_app(secret="given").app.settings.secret == ()


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    app = make_app(secret=SECRET).app
    assert SECRET not in repr(app.settings) + str(app.settings) + repr(list(app.settings.__rich_repr__()))
    assert "allowed_hosts" in repr(app.settings)
    for wrong in (SECRET.encode(), [SECRET.encode()], 7, {SECRET: 1}.items()):
        with pytest.raises((TypeError, ValueError), match="secret") as raised:
            make_app(secret=wrong)
        assert SECRET not in str(raised.value)
    with pytest.raises(ValueError, match="secret") as raised_too:
        Settings(secret=(SECRET.encode(),)).with_environment({})  # type: ignore[arg-type]
    assert SECRET not in str(raised_too.value)


def test_a_provider_must_be_a_function() -> None:
    with pytest.raises(TypeError, match="thread_ids must be a function"):
        make_app(thread_ids="thrd_" + "a" * 32)


# Cookies


def is_secure(answer: httpx.Response) -> bool:
    (cookie,) = answer.headers.get_list("set-cookie")
    assert re.search("; HttpOnly; SameSite=Lax(; Secure)?$", cookie)
    return bool(cookie.endswith("; Secure"))


@pytest.mark.parametrize("trusts", [True, False])
async def test_the_cookie_is_secure_behind_a_trusted_proxy_with_https(folder: Path, trusts: bool) -> None:
    options = ["--proxy-headers"] if trusts else []
    with Process("agents:app", cwd=folder, environment={"PLAIT_SECRET": SECRET}, options=options) as server:
        async with http(server.address) as web:
            assert not is_secure(await web.post("/run/name"))
            assert is_secure(await web.post("/run/name", headers={"x-forwarded-proto": "https"})) == trusts
            assert not is_secure(await web.post("/run/name", headers={"x-forwarded-proto": "http"}))


# Instruments


async def test_instruments_are_told_of_a_run_by_its_kind() -> None:
    told = Recorder()
    chat = make_app(instruments=told)
    async with running(chat.app) as address, http(address) as web:
        assert (await web.post("/run/count")).status_code == 200
        assert (await web.post("/run/nobody")).status_code == 404
        assert (await web.post("/threads/room/one/run/count")).status_code == 200
    assert [each[:3] for each in told.of("request_began")] == [
        ("room", "", "POST"),
        ("", "", "POST"),
        ("room", "one", "POST"),
    ]
    assert told.of("request_ended") == [(200,), (404,), (200,)]
    runs = [each for each in told.events if each.name == "turn_began" and "rpc run:count" in each.arguments]
    assert [next(told.causes(each)).name for each in runs] == ["request_began", "request_began"]
