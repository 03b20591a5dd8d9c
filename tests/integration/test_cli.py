"""The command line: serving, output, and error messages."""

import asyncio
import hashlib
import itertools
import json
import os
import re
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from tests.cases import each_case
from tests.commands import Done, run_command
from tests.integration.socket_client import TIMEOUT, bare_socket, connected, http
from tests.ports import hold_port
from tests.running import Process
from tests.schedules import in_soak
from tests.server.owning import submit

from plait.cli.main import cli
from plait.cluster.node_config import VARIABLES
from plait.settings import COMMAND_VARIABLES
from plait.state.state_history import replay_document
from plait.store.protocol import ThreadQuery, Write
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import Snapshot, ThreadKey

ROOT = Path(__file__).parents[2]
GAME = """
from plait import Plait, Thread, rpc

class Room(Thread):
    initial_state = {"n": 0}

    def on_message(self, connection, data):
        raise ValueError("in the hook")

    @rpc
    def add(self) -> int:
        self.set_state(lambda state: {"n": state["n"] + 1})
        return self.state["n"]

    @rpc
    def edition(self) -> str:
        return "first"

app = Plait(Room)
text = "no app"

def make():
    return app
"""
# Threads with values.
TALK = """
from plait import Plait, Thread, Values, rpc

class Room(Thread):
    initial_state = {"n": 0}
    values = Values()

    def validate_state_change(self, next_state, source):
        if next_state["n"] < 0:
            raise ValueError("below 0")

    @rpc
    async def note(self, topic: str) -> None:
        await self.values.set("topic", topic)
        await app.kv.set("topics", topic, 1)
        await self.set_state(lambda state: {"n": state["n"] + 1})

app = Plait(Room)
"""
# The same threads with another type of state, and with a version for it.
EVOLVED = """
import msgspec

from plait import Plait, Thread, migrate

class Game(msgspec.Struct):
    score: int
    title: str = "untitled"

class Room(Thread[Game]):
    initial_state = Game(0)
    state_version = 2

    @staticmethod
    @migrate(from_=1)
    def the_count_is_the_score(state):
        return {"score": state["n"]}

app = Plait(Room)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a working directory with an app in it."""
    (tmp_path / "game.py").write_text(GAME)
    return tmp_path


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a command."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "COLUMNS": "200", **(more or {})}


def plait(folder: Path, *arguments: str, **more: str) -> Done:
    """Run a command to its end, with more in its environment."""
    return run_command(arguments, cwd=folder, environment=environment(more))


def complaint(folder: Path, *arguments: str) -> str:
    """Run a command that must fail with one line that says why, and return it."""
    done = plait(folder, *arguments)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("plait: ")]
    return line


@asynccontextmanager
async def command(
    folder: Path, *arguments: str, before: Sequence[str] = (), end: signal.Signals = signal.SIGINT
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command that does not end by itself; it leads a group of its own, which is ended by the signal `end`.

    `before` are words that come before it.
    """
    with (folder / "command.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            *before,
            sys.executable,
            "-m",
            "plait.cli",
            *arguments,
            cwd=folder,
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(end)
        try:
            await asyncio.wait_for(process.wait(), TIMEOUT)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise


async def address_of(process: asyncio.subprocess.Process) -> str:
    """Wait until a server says where it listens."""
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT):
        while line := (await process.stdout.readline()).decode():
            if found := re.search(r"://(\S+) ", line):
                return found[1]
    raise AssertionError("the server did not start")


@contextmanager
def taken_port() -> Iterator[int]:
    """Yield a port on which another socket listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free_port() -> Iterator[str]:
    """Return a port that is free and reserved for the test."""
    with hold_port() as held:
        yield str(held.getsockname()[1])


# serve


async def test_serve_serves_a_module_of_the_working_directory(folder: Path) -> None:
    with Process("game:app", cwd=folder) as server:
        async with connected(server.address, "/threads/room/one") as client:
            assert await client.call("add") == 1
    assert (folder / "plait.db").exists()


async def test_serve_takes_settings_from_the_environment(folder: Path) -> None:
    more = {
        "PLAIT_STORE": "sqlite:///other.db",
        "PLAIT_LIMITS_FRAME": "1000",
        "PLAIT_ALLOWED_ORIGINS": "https://a.example",
        "PLAIT_LIMIT_STATE": "2000",
    }
    with Process("game:app", cwd=folder, environment=more) as server:
        async with connected(server.address, "/threads/room/one", origin="https://a.example") as client:
            assert await client.call("add") == 1
            await client.send("x" * 1001)
            assert await client.until_closed() == 1009
        (line,) = [line for line in server.log.read_text().splitlines() if "PLAIT_LIMIT_STATE" in line]
    assert line.endswith("is not a setting and is ignored; did you mean PLAIT_LIMITS_STATE?")
    assert (folder / "other.db").exists()
    assert not (folder / "plait.db").exists()


@each_case(
    ("arguments", "says"),
    [
        (["game"], "write module:attribute, such as game:app"),
        (["game:"], "write module:attribute, such as game:app"),
        (["missing:app"], "there is no module 'missing'"),
        (["missing.deeper:app"], "there is no module 'missing.deeper'"),
        (["gmae:app"], "and none is installed; did you mean 'game'?"),
        (["game.py:app"], "'game.py:app' names a file: write the module, game:app"),
        (["game.py"], "'game.py' names a file: write the module, game:app"),
        (["./game.py:app"], "names a file: write the module, game:app"),
        (["rooms/game.py:app"], "names a file: write the module, rooms.game:app"),
        (["/game.py:app"], "names a file elsewhere: go to / and write game:app"),
        (["game:other"], "game has no 'other': write game:app"),
        (["game:ap"], "game has no 'ap'; did you mean game:app?"),
        (["game:text"], "game:text is a str, not an app: write game:app"),
        (["game:Room"], "game:Room is a Thread class, not a Plait: write game:app"),
        (["game:Plait"], "game:Plait is the class itself, not a Plait: write game:app"),
        (["game:make"], "game:make is a function, not an app: call it in the module, as in app = make(...)"),
        (["game", "--workers", "2"], "write module:attribute, such as game:app"),
        (["game:app", "--tls-certificate", "none.pem", "--tls-key", "none.pem"], "there is no file none.pem"),
        (["game:app", "--tls-certificate", "game.py"], "needs both"),
        (["game:app", "--tls-certificate", "game.py", "--tls-key", "game.py"], "game.py"),
        (["game:app", "--host", "no.such.host.invalid"], "pass an address of this machine with --host"),
        (["game:app", "--host", "192.0.2.1"], "pass an address of this machine with --host"),
        (["game:app", "--host", "x" * 70], "is not a host; pass an address of this machine with --host"),
    ],
)
def test_serve_says_what_is_wrong_with_its_arguments(folder: Path, arguments: list[str], says: str) -> None:
    assert says in complaint(folder, "serve", *arguments, "--port", "0")


@pytest.mark.parametrize("arguments", [["--port", "x"], ["--port", "99999"], ["--log-level", "loud"], ["--nonsense"]])
def test_serve_refuses_what_is_no_argument(folder: Path, arguments: list[str]) -> None:
    done = plait(folder, "serve", "game:app", *arguments)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("source", "shown", "says"),
    [
        (
            "import json\n\n\ndef load():\n    json.loads('{')\n\n\nload()\n",
            ["line 8, in <module>", "line 5, in load"],
            "broken does not import: broken.py, line 5: JSONDecodeError: Expecting property name",
        ),
        (
            "import not_installed\n",
            ["line 1, in <module>"],
            "broken does not import: broken.py, line 1: ModuleNotFoundError: No module named 'not_installed'",
        ),
        (
            "from plait import Plaid\n",
            ["line 1, in <module>"],
            "broken does not import: broken.py, line 1: ImportError: cannot import name 'Plaid' from 'plait'",
        ),
        ("def broken(:\n", ["def broken(:", "^"], "broken does not import: broken.py, line 1: SyntaxError: invalid"),
        ("raise ValueError('two\\nlines')", ["line 1, in <module>"], "broken.py, line 1: ValueError: two lines"),
    ],
)
def test_a_module_that_raises_is_shown_by_its_own_lines(folder: Path, source: str, shown: list[str], says: str) -> None:
    (folder / "broken.py").write_text(source)
    done = plait(folder, "serve", "broken:app", "--port", "0")
    assert done.returncode == 1
    assert "broken.py" in done.stderr
    *before, last = done.stderr.splitlines()
    assert [text for text in shown if text not in "\n".join(before)] == []
    assert last.startswith("plait: ")
    assert says in last
    for hidden in ("Traceback", "importlib", "plait/cli/", "cyclopts", "json/decoder.py"):
        assert hidden not in "".join(before)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("app = Plait(int)", "line 3: Plait takes subclasses of Thread, not <class 'int'>"),
        ("app = Plait()", "line 3: Plait() needs at least one Thread class"),
        ("app = Plait(Room, store='nonsense://')", "line 3: store: unknown store URL 'nonsense://'"),
        ("app = Plait(Room, limits=Limits(frame=0))", "line 3: Limits(frame=0): must be at least 1000"),
        ("class Late(Room):\n    retention = 5", "line 3: Late.retention must be a Retention, for example"),
        ("class Late(Thread[int]):\n    initial_state = '1'", "line 3: Late.initial_state does not fit int: Expected"),
    ],
)
def test_what_plait_refuses_in_a_module_is_one_line_with_the_place(folder: Path, source: str, says: str) -> None:
    head = "from plait import Limits, Plait, Thread\nclass Room(Thread): pass\n"
    (folder / "wrong.py").write_text(f"{head}{source}\n")
    for command in (["serve"], ["types", "--out", "types"], ["migrate"]):
        done = plait(folder, *command[:1], "wrong:app", *command[1:])
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"plait: wrong.py, {says}")
        assert done.returncode == 1


def test_a_name_that_is_nearly_a_hook_is_said_with_its_place(folder: Path) -> None:
    (folder / "near.py").write_text(GAME.replace("on_message", "onMessage"))
    done = plait(folder, "types", "near:app", "--out", "types")
    assert done.returncode == 0
    assert "near.py:4: UserWarning: Room.onMessage is not called by plait: the hook is named on_message" in done.stderr


def test_a_port_in_use_is_said(folder: Path) -> None:
    with taken_port() as port:
        line = complaint(folder, "serve", "game:app", "--port", str(port))
    assert f"port {port} is in use" in line
    assert "--port" in line


@each_case(
    ("variable", "value", "says"),
    [
        ("PLAIT_PING_INTERVAL", "soon", "PLAIT_PING_INTERVAL='soon': Expected `float`, got `str`"),
        ("PLAIT_LIMITS", "off", "PLAIT_LIMITS='off': must be 'none'"),
        ("PLAIT_STORE", "nonsense://", "PLAIT_STORE: unknown store URL 'nonsense://'"),
        ("PLAIT_STORE", "", "PLAIT_STORE: unknown store URL ''"),
        ("PLAIT_STATIC", "nowhere", "PLAIT_STATIC: 'nowhere' is not a folder: make it with `mkdir /"),
        ("PLAIT_STATIC", "", "PLAIT_STATIC: '' is not a folder"),
        ("PLAIT_PING_INTERVAL", "0", "PLAIT_PING_INTERVAL='0': must be a number of seconds, at least 0.1"),
        ("PLAIT_LIMITS_FRAME", "0", "PLAIT_LIMITS_FRAME='0': must be at least 1000"),
    ],
)
def test_a_setting_that_is_wrong_is_named(folder: Path, variable: str, value: str, says: str) -> None:
    done = plait(folder, "serve", "game:app", "--port", "0", **{variable: value})
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"plait: {says}")


@pytest.mark.parametrize("damage", ["text", "another", "newer", "earlier", "folder"])
def test_a_store_that_is_none_is_said_and_left_as_it_is(folder: Path, damage: str) -> None:
    store = folder / "plait.db"
    if damage == "folder":
        store.mkdir()
    elif damage == "text":
        store.write_text("This is no database. " * 500)
    else:
        with closing(sqlite3.connect(store)) as db:
            db.execute("CREATE TABLE notes (text TEXT)")
            if damage != "another":
                db.execute("PRAGMA application_id = 1886151017")
                db.execute(f"PRAGMA user_version = {99 if damage == 'newer' else 4}")
            db.commit()
    before = _content(store)
    assert "store" in complaint(folder, "serve", "game:app", "--port", "0")
    assert _content(store) == before


def test_a_store_that_another_server_has_open_is_said(folder: Path) -> None:
    with Process("game:app", cwd=folder):
        line = complaint(folder, "serve", "game:app", "--port", "0")
        assert "in use by another server" in line


async def test_tls_works(folder: Path) -> None:
    make = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    subject = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *make.split(), *subject], cwd=folder, check=True, capture_output=True)  # noqa: ASYNC221
    trust = ssl.create_default_context(cafile=folder / "cert.pem")
    more = ("--tls-certificate", "cert.pem", "--tls-key", "key.pem")
    async with command(folder, "serve", "game:app", "--port", "0", *more) as process:
        address = await address_of(process)
        origin = f"https://{address}"
        async with connected(address, "/threads/room/one", ssl=trust, origin=origin) as client:
            assert await client.call("add") == 1
        async with httpx.AsyncClient(verify=trust, trust_env=False) as web:
            assert (await web.get(f"https://{address}/threads/room/one")).json() == {"n": 1}


async def test_log_lines_carry_the_thread_and_the_connection(folder: Path) -> None:
    with Process("game:app", cwd=folder) as server:
        async with connected(server.address, "/threads/room/one", query={"_pk": "ada"}) as client:
            await client.send("hello")
            assert await client.call("add") == 1
        (line,) = [line for line in server.log.read_text().splitlines() if "unexpected ValueError" in line]
    thread = r"plait.thread \[room/one\] \[[0-9a-f]{24}\]"
    assert re.fullmatch(rf"\S+ \S+ ERROR   {thread}: internal error [0-9a-f]{{12}}: unexpected ValueError", line)


@pytest.mark.parametrize(
    ("arguments", "worker"),
    [
        (["serve", "game:app", "--port", "0", "--log-level", "debug"], None),
        (["serve", "game:app", "--port", "0", "--log-level", "debug", "--workers", "2"], 0),
        (["dev", "game:app"], None),
    ],
)
async def test_all_log_lines_may_be_json(
    folder: Path, free_port: str, arguments: list[str], worker: int | None
) -> None:
    more = ["--port", free_port] if arguments[0] == "dev" else []
    async with command(folder, *arguments, *more, "--log-format", "json") as process:
        address = await address_of(process)
        async with connected(address, "/threads/room/one", query={"_pk": "ada"}) as client:
            await client.send("hello")
            assert await client.call("add") == 1
        async with http(address) as web:
            assert (await web.get("/threads/room/one")).status_code == 200
    lines = [json.loads(line) for line in (folder / "command.log").read_text().splitlines()]
    (line,) = [line for line in lines if "unexpected ValueError" in line["message"]]
    assert (line["logger"], line["level"], line["plait_thread"]) == ("plait.thread", "error", "room/one")
    assert re.fullmatch("[0-9a-f]{24}", line["plait_connection"])
    assert line["exception"].endswith("ValueError: in the hook")
    assert {"uvicorn.error", "uvicorn.access"} <= {line["logger"] for line in lines}
    assert {line.get("worker") is None for line in lines if line["logger"].startswith("uvicorn")} == {worker is None}


async def test_a_socket_that_is_refused_is_in_the_log(folder: Path) -> None:
    with Process("game:app", cwd=folder) as server:
        async with connected(server.address, "/threads/rooom/one") as client:
            assert await client.until_closed() == 4404
        (line,) = [line for line in server.log.read_text().splitlines() if "refused" in line]
    assert line.endswith(
        "INFO    plait.sockets: a socket was refused, not_found: "
        "there is no kind of thread called 'rooom'; there are: room"
    )


async def test_listening_on_all_addresses_says_which_names_are_answered_to(folder: Path) -> None:
    async with command(folder, "serve", "game:app", "--host", "0.0.0.0", "--port", "0") as process:
        port = (await address_of(process)).rpartition(":")[2]
        async with httpx.AsyncClient(trust_env=False, base_url=f"http://127.0.0.1:{port}") as web:
            assert (await web.get("/threads/room/one")).status_code == 404
            answer = await web.get("/threads/room/one", headers={"Host": "rebound.example"})
            assert answer.status_code == 421
    log = (folder / "command.log").read_text()
    (line,) = [line for line in log.splitlines() if "listening on all addresses" in line]
    assert "PLAIT_ALLOWED_HOSTS" in line


MOUNTED = """
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from game import Room
from plait import Plait

plait = Plait(Room, request_timeout=0.5)
api = FastAPI(lifespan=plait.lifespan)
api.mount("/live", plait)
wrapped = CORSMiddleware(api)
"""


@asynccontextmanager
async def _begun(web: httpx.AsyncClient) -> AsyncIterator[httpx.AsyncClient]:
    """Begin the thread that is read."""
    await web.put("/threads/room/one", json={"n": 0})
    yield web


@pytest.mark.parametrize("app", ["api", "wrapped"])
async def test_what_is_mounted_is_served_by_its_own_settings(folder: Path, app: str) -> None:
    (folder / "mounted.py").write_text(MOUNTED)
    async with command(folder, "serve", f"mounted:{app}", "--host", "0.0.0.0", "--port", "0") as process:
        address = (await address_of(process)).replace("0.0.0.0", "127.0.0.1")
        with bare_socket(address) as silent:
            async with asyncio.timeout(9):  # By default it would have 10 s.
                assert await asyncio.get_running_loop().sock_recv(silent, 1) == b""
        async with (
            httpx.AsyncClient(trust_env=False, base_url=f"http://{address}/live") as web,
            _begun(web) as web,
            web.stream("GET", "/threads/room/one/changes", headers={"Accept": "text/event-stream"}) as stream,
        ):
            assert (await web.get("/threads/room/one", headers={"Host": "rebound.example"})).status_code == 421
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(9):  # The server would wait 10 s for a stream that does not end.
                async for _ in stream.aiter_lines():
                    pass
    assert "listening on all addresses" in (folder / "command.log").read_text()


def test_the_store_of_what_is_mounted_is_opened_before_it_is_served(folder: Path) -> None:
    (folder / "mounted.py").write_text(MOUNTED.replace("(Room,", '(Room, store="sqlite:///gone/x.db",'))
    assert "mkdir" in complaint(folder, "serve", "mounted:api")


# dev and demo


@pytest.mark.parametrize(
    ("name", "status", "app"),
    [("serve", 401, "app"), ("dev", 404, "api"), *in_soak(("serve", 401, "api"), ("dev", 404, "app"))],
)
async def test_dev_tells_everybody_which_kinds_there_are(
    folder: Path, free_port: str, name: str, status: int, app: str
) -> None:
    (folder / "guarded.py").write_text(
        "from game import Room\nfrom plait import Plait\napp = Plait(Room, authenticate=lambda request: None)\n"
        'from fastapi import FastAPI\napi = FastAPI(lifespan=app.lifespan)\napi.mount("/", app)\n'
    )
    async with (
        command(folder, name, f"guarded:{app}", "--port", free_port) as process,
        httpx.AsyncClient(trust_env=False, base_url=f"http://{await address_of(process)}") as web,
    ):
        answer = await web.get("/threads/rooom/one")
    assert answer.status_code == status
    assert ("there are: room" in answer.text) == (name == "dev")


@pytest.mark.parametrize("workers", ["2", *in_soak(["1"])])
async def test_dev_serves_anew_when_a_file_is_edited(folder: Path, free_port: str, workers: str) -> None:
    async with command(folder, "dev", "game:app", "--port", free_port, "--workers", workers) as process:
        assert await address_of(process) == f"127.0.0.1:{free_port}"
        async with connected(f"127.0.0.1:{free_port}", "/threads/room/one") as client:
            assert await client.call("edition") == "first"
            assert await client.call("add") == 1
            (folder / "game.py").write_text(GAME.replace('"first"', '"second"'))
            assert await client.until_closed() == 1001
        assert await address_of(process) == f"127.0.0.1:{free_port}"
        async with connected(f"127.0.0.1:{free_port}", "/threads/room/one") as client:
            assert await client.call("edition") == "second"
            assert await client.call("add") == 2


async def test_dev_says_what_is_wrong_and_serves_when_it_is_mended(folder: Path, free_port: str) -> None:
    (folder / "game.py").write_text("import not_installed\n")
    together = ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh"]
    async with command(folder, "dev", "game:app", "--port", free_port, before=together) as process:
        assert process.stdout is not None
        said = await asyncio.wait_for(process.stdout.readuntil(b"No module named 'not_installed'\n"), TIMEOUT)
        assert said.splitlines()[-1].startswith(b"plait: game does not import: game.py, line 1: ModuleNotFoundError")
        assert b"Traceback" not in said
        (folder / "game.py").write_text(GAME)
        assert await address_of(process) == f"127.0.0.1:{free_port}"


@pytest.mark.parametrize("arguments", [["game.py:app"], ["game"]])
def test_dev_ends_when_no_edit_would_help(folder: Path, arguments: list[str]) -> None:
    assert "write" in complaint(folder, "dev", *arguments)


@pytest.mark.parametrize("name", ["serve", "dev"])
async def test_what_a_script_has_put_into_the_background_ends_with_an_interrupt(
    folder: Path, free_port: str, name: str
) -> None:
    """Shells have such commands ignore it."""
    ignoring = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    async with command(folder, name, "game:app", "--port", free_port, before=ignoring) as process:
        await address_of(process)
    assert process.returncode == 0


# By which signal, and whether from a terminal, where Ctrl+C is told to all processes of its group.
ENDS: Final = [*itertools.product("12", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], [False, True])]
# Each signal, to the process alone and from a terminal.
FIRST_ENDS: Final = [
    ("1", signal.SIGINT, False),
    ("2", signal.SIGINT, True),
    ("2", signal.SIGTERM, False),
    ("1", signal.SIGHUP, True),
]


@pytest.mark.parametrize(
    ("workers", "end", "is_terminal"),
    [
        *FIRST_ENDS,
        *in_soak(*(each for each in ENDS if each not in FIRST_ENDS)),
    ],
)
async def test_dev_ends_with_its_server_and_without_a_traceback(
    folder: Path, free_port: str, workers: str, end: signal.Signals, is_terminal: bool
) -> None:
    default = [sys.executable, "-c", "import os, signal, sys; signal.signal(1, signal.SIG_DFL); os.execv(*_)"]
    default[-1] = default[-1].replace("*_", "sys.argv[1], sys.argv[1:]")
    arguments = ["dev", "game:app", "--port", free_port, "--workers", workers]
    async with command(folder, *arguments, before=default, end=end) as process:
        await address_of(process)
        if is_terminal:
            os.killpg(process.pid, end)
    assert process.returncode == 0
    log = (folder / "command.log").read_text()
    assert "Application shutdown complete" in log
    assert "Traceback" not in log
    assert "KeyboardInterrupt" not in log
    async with http(f"127.0.0.1:{free_port}") as web:
        with pytest.raises(httpx.ConnectError):
            await web.get("/healthz")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
async def test_dev_ends_without_a_traceback_while_the_app_is_imported(
    folder: Path, free_port: str, end: signal.Signals
) -> None:
    (folder / "slow.py").write_text("import time\nprint('see http://begun now', flush=True)\ntime.sleep(60)\n")
    async with command(folder, "dev", "slow:app", "--port", free_port, end=end) as process:
        assert await address_of(process) == "begun"
        os.killpg(process.pid, end)
    assert process.returncode == 0
    assert "Traceback" not in (folder / "command.log").read_text()


async def test_demo_serves_its_index_page(folder: Path) -> None:
    async with command(folder, "demo", "--port", "0") as process, http(await address_of(process)) as web:
        answer = await web.get("/")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        for kind in ("desk", "board", "tictactoe", "cards", "counter"):
            assert kind in answer.text
        assert (await web.put("/threads/counter/one", json={"count": 0})).json()["version"] == 0
        assert (await web.get("/threads/counter/one")).json() == {"count": 0}
    assert (folder / "plait-demo.db").exists()
    assert not (folder / "plait.db").exists()


# threads and state


async def test_threads_and_state_look_into_a_store_that_is_served(folder: Path) -> None:
    with Process("game:app", cwd=folder) as server:
        async with connected(server.address, "/threads/room/one") as client, http(server.address) as web:
            for n in (1, 2):
                assert await client.call("add") == n
            await web.put("/threads/room/a%2Fb", json={"n": 0})
        listed = plait(folder, "threads")
        assert (listed.returncode, listed.stderr) == (0, "")
        lines = [line.split() for line in listed.stdout.splitlines()]
        assert [(line[0], line[5]) for line in lines] == [("0", "room/a/b"), ("2", "room/one")]
        assert plait(folder, "state", "room/one").stdout == '{\n  "n": 2\n}\n'
        assert plait(folder, "state", "room/a/b", "--store", "plait.db").stdout == '{\n  "n": 0\n}\n'
    for store in (str(folder / "plait.db"), "sqlite:///plait.db", f"sqlite:///{folder}/plait.db?synchronous=normal"):
        assert plait(folder, "state", "room/one", "--store", store).stdout == '{\n  "n": 2\n}\n'
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    found = plait(elsewhere, "state", "room/one", PLAIT_STORE=f"sqlite:///{folder}/plait.db")
    assert found.stdout == '{\n  "n": 2\n}\n'


async def test_threads_are_listed_by_kind_and_prefix_and_destroyed_when_nobody_serves_them(folder: Path) -> None:
    with Process("game:app", cwd=folder) as server:
        async with http(server.address) as web:
            for name in ("one", "other", "two", "a%2Fb"):
                await web.put(f"/threads/room/{name}", json={"n": 0})
            listed = plait(folder, "threads", "list", "--kind", "room", "--prefix", "o")
            assert names_of(listed.stdout) == ["room/one", "room/other"]
            assert plait(folder, "threads", "list", "plait.db", "--kind", "nothing").stdout == ""
            line = complaint(folder, "threads", "destroy", "room", "a/b", "--yes")
            assert "a server has plait.db open: send it DELETE /threads/room/a%2Fb, or stop it first" in line
            assert (await web.get("/threads/room/a%2Fb")).status_code == 200
    assert "nothing was deleted" in complaint(folder, "threads", "destroy", "room", "one")
    assert "there is no thread room/three in plait.db" in complaint(folder, "threads", "destroy", "room", "three")
    done = plait(folder, "threads", "destroy", "room", "one", "plait.db", "--yes")
    assert (done.returncode, done.stdout) == (0, "room/one is deleted; its on_destroyed was not called\n")
    listed = plait(folder, "threads")
    assert names_of(listed.stdout) == ["room/a/b", "room/other", "room/two"]
    assert "there is no store none.db" in complaint(folder, "threads", "destroy", "room", "one", "none.db", "--yes")
    assert not (folder / "none.db").exists()


async def test_a_thread_is_shown_and_exported_while_it_is_served_and_imported_elsewhere(folder: Path) -> None:
    (folder / "talk.py").write_text(TALK)
    key = ("room", "ada:one")
    with Process("talk:app", cwd=folder) as server:
        async with http(server.address) as web:
            await web.post("/threads/room/ada%3Aone/rpc/note", json={"args": ["tea"]})
        done = plait(folder, "threads", "export", *key, "--out", "one.jsonl")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert plait(folder, "threads", "export", *key).stdout == (folder / "one.jsonl").read_text()
        shown = json.loads(plait(folder, "threads", "show", *key).stdout)
        assert (shown["version"], shown["session"], shown["state"]) == (1, ["ada", "one"], {"n": 1})
        assert ["topic", "tea"] in shown["parts"]["values"].values()
        assert "plait.db" in complaint(folder, "threads", "import", "talk:app", "one.jsonl")
        listed = plait(folder, "threads")
        assert names_of(listed.stdout) == ["room/ada:one"]
        listed = plait(folder, "threads", "list", "--all")
        assert names_of(listed.stdout) == ["plait-kv/topics", "room/ada:one"]
    assert "a thread room/ada:one already" in complaint(folder, "threads", "import", "talk:app", "one.jsonl")
    for more in (["--replace"], ["--name", "two"]):
        done = plait(folder, "threads", "import", "talk:app", "one.jsonl", *more)
        assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "room/two is imported\n"
    exported = plait(folder, "threads", "export", "room", "two").stdout.splitlines()
    assert exported[1:-1] == (folder / "one.jsonl").read_text().splitlines()[1:-1]
    assert json.loads(exported[0])["name"] == "two"
    assert "0 of kinds that the app does not have" in plait(folder, "migrate", "talk:app").stdout


def names_of(listed: str) -> list[str]:
    """Return the threads of a listing: after the version, and two dates and times."""
    return [line.split(maxsplit=5)[5] for line in listed.splitlines()]


def make_file(*lines: object) -> str:
    data = "".join(json.dumps(line) + "\n" for line in lines)
    end = {"records": 0, "sha256": hashlib.sha256(data.encode()).hexdigest()}
    return data + json.dumps(end) + "\n"


async def test_what_cannot_be_shown_exported_or_imported_is_said_in_a_line(folder: Path) -> None:
    (folder / "talk.py").write_text(TALK)
    for command in ("show", "export"):
        assert "there is no store none.db" in complaint(folder, "threads", command, "room", "one", "none.db")
    with Process("talk:app", cwd=folder):
        for command in ("show", "export"):
            assert "there is no thread room/one" in complaint(folder, "threads", command, "room", "one")
        assert "there is no thread" in complaint(folder, "threads", "export", "room", "one", "--out", "none.jsonl")
    assert not (folder / "none.jsonl").exists()
    assert "cannot read no.jsonl" in complaint(folder, "threads", "import", "talk:app", "no.jsonl")
    bad, command = folder / "bad.jsonl", ("threads", "import", "talk:app", "bad.jsonl")
    room = {"format": 3, "kind": "room", "name": "one"}
    bad.write_text('{"format":1,"kind":"room","name":"one"}')
    assert "the thread was exported in format 1; this plait reads 3" in complaint(folder, *command)
    bad.write_text(make_file(room, 7))
    line = complaint(folder, *command)
    assert "this is not an exported thread: line 2: Expected `object`, got `int`" in line
    bad.write_text(make_file(room)[:-1])
    assert "it is not complete: its last line is missing" in complaint(folder, *command)
    bad.write_text(make_file({**room, "kind": "hall"}))
    assert "no kind of thread called 'hall'" in complaint(folder, *command)
    bad.write_text(make_file(room, {"state": {"n": -1}}))
    assert "raised ValueError: below 0" in complaint(folder, *command)
    bad.write_text(make_file(room))
    assert "no module" in complaint(folder, "threads", "import", "none:app", "bad.jsonl")
    (folder / "memory.py").write_text(TALK.replace("Plait(Room)", 'Plait(Room, store="memory://")'))
    assert "keeps its threads in memory" in complaint(folder, "threads", "import", "memory:app", "bad.jsonl")


async def test_threads_and_state_say_what_they_do_not_find(folder: Path) -> None:
    assert "there is no store plait.db" in complaint(folder, "threads")
    assert "there is no store plait.db" in complaint(folder, "state", "room/one")
    assert not (folder / "plait.db").exists()
    assert "use kind/name" in complaint(folder, "state", "room")
    assert "memory:// is not a store file" in complaint(folder, "threads", "memory://")
    assert "oracle://x is not a store file" in complaint(folder, "threads", "oracle://x")
    with Process("game:app", cwd=folder):
        line = complaint(folder, "state", "room/one")
        assert "no thread room/one" in line
        assert "`plait threads plait.db`" in line
    assert "game.py" in complaint(folder, "threads", "--store", "game.py")


# migrate


async def stored(folder: Path, *threads: tuple[str, int, bytes]) -> Path:
    """Put threads into a store, each with its name, its state_version and its state; returns the store."""
    store = folder / "plait.db"
    keys = [ThreadKey(*key.split("/")) for key, _, _ in threads]
    writes = [
        Write(key, "epoch", None, 0, snapshots=(Snapshot(0, state),), state_version=state_version)
        for key, (_, state_version, state) in zip(keys, threads, strict=True)
    ]
    async with SqliteStore(store) as opened:
        await asyncio.gather(*(submit(opened, each) for each in writes))
    return store


async def states(store: Path) -> dict[str, tuple[int, int, Any]]:
    """Return the stored threads: each with its version, its state_version and its state."""
    found: dict[str, tuple[int, int, Any]] = {}
    async with SqliteStore(store, readonly=True) as opened:
        for row in await opened.threads(ThreadQuery(limit=10_000)):
            each = await opened.load(row.key)
            assert each is not None
            found[str(row.key)] = each.version, each.state_version, replay_document(row.key, each)
    return found


async def test_migrate_brings_every_thread_up_to_date_once(folder: Path) -> None:
    old = [(f"room/{n:04}", 1, b'{"n":%d}' % n) for n in range(303)]
    store = await stored(folder, *old, ("room/current", 2, b'{"score":7,"title":"new"}'))
    (folder / "game.py").write_text(EVOLVED)
    done = plait(folder, "migrate", "game:app", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1 up to date, 303 to migrate, 0 failed, 0 of kinds that the app does not have\n"
    assert (await states(store))["room/0005"] == (0, 1, {"n": 5})
    for migrated in (303, 0):
        done = plait(folder, "migrate", "game:app")
        assert (done.returncode, done.stderr) == (0, "")
        current = 304 - migrated
        line = f"{current} up to date, {migrated} migrated, 0 failed, 0 of kinds that the app does not have\n"
        assert done.stdout == line
        found = await states(store)
        assert found["room/0005"] == (1, 2, {"score": 5, "title": "untitled"})
        assert found["room/current"] == (0, 2, {"score": 7, "title": "new"})
        assert {state_version for _, state_version, _ in found.values()} == {2}
    with Process("game:app", cwd=folder) as server:
        async with http(server.address) as web:
            assert (await web.get("/threads/room/0005")).json() == {"score": 5, "title": "untitled"}
            (change,) = (await web.get("/threads/room/0005/changes")).json()["changes"]
            assert (change["version"], change["source"]) == (1, "migration")
            assert (await web.get("/threads/room/0005?at=0")).json() == {"n": 5}


RENAMED = """
import msgspec
from plait import Plait, Thread

class Note(msgspec.Struct, frozen=True):
    heading: str = ""

class Book(msgspec.Struct, frozen=True, omit_defaults=True):
    notes: list[Note] = []
    by_name: dict[str, Note] = {}
    open: bool = False

class Notebook(Thread[Book]):
    initial_state = Book()

app = Plait(Notebook, store="sqlite:///plait.db")
"""


@pytest.mark.parametrize("dry_run", [True, False])
async def test_migrate_lists_the_members_that_stored_states_have_and_the_type_lacks(
    folder: Path, dry_run: bool
) -> None:
    store = await stored(
        folder,
        ("notebook/a", 1, b'{"notes":[{"title":"x"},{"title":"y","heading":"z"}],"open":false}'),
        ("notebook/b", 1, b'{"by_name":{"one":{"title":"x"}},"notes":[{"title":"x"}],"old/er":1}'),
        ("notebook/c", 1, b'{"notes":[{"heading":"x"}],"open":false}'),
        ("notebook/d", 1, b"{}"),
    )
    before = await states(store)
    (folder / "game.py").write_text(RENAMED)
    done = plait(folder, "migrate", "game:app", *(["--dry-run"] if dry_run else []))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "plait: 1 thread of notebook would lose /by_name/*/title, which the type lacks",
        "plait: 2 threads of notebook would lose /notes/*/title, which the type lacks",
        "plait: 1 thread of notebook would lose /old~1er, which the type lacks",
        "plait: increase state_version, and add a @migrate function that converts these members",
    ]
    what = "to migrate" if dry_run else "migrated"
    line = f"2 up to date, 0 {what}, 0 failed, 0 of kinds that the app does not have, 2 would lose members\n"
    assert done.stdout == line
    assert await states(store) == before


async def test_waking_says_once_a_kind_that_states_have_members_that_the_type_lacks(folder: Path) -> None:
    await stored(folder, *((f"notebook/{n}", 1, b'{"notes":[{"title":"x"}]}') for n in "abc"), ("notebook/d", 1, b"{}"))
    (folder / "game.py").write_text(RENAMED)
    with Process("game:app", cwd=folder) as server:
        async with http(server.address) as web:
            for name in "dabc":
                assert (await web.get(f"/threads/notebook/{name}")).status_code == 200
        assert server.log.read_text().count("loses /notes/*/title with its next change") == 1


@pytest.mark.parametrize("dry_run", [True, False])
async def test_migrate_says_of_each_thread_that_fails_why_and_leaves_it_as_it_is(folder: Path, dry_run: bool) -> None:
    store = await stored(
        folder,
        ("gone/a", 1, b"1"),
        ("gone/b", 9, b"1"),
        ("room/broken", 1, b'{"score":1}'),
        ("room/changed", 2, b'{"score":"many"}'),
        ("room/current", 2, b'{"score":7,"title":"new"}'),
        ("room/newer", 3, b'{"score":1,"title":"newest"}'),
        ("room/old", 1, b'{"n":5}'),
        ("room/wrong", 1, b'{"n":"many"}'),
    )
    before = await states(store)
    (folder / "game.py").write_text(EVOLVED)
    done = plait(folder, "migrate", "game:app", *(["--dry-run"] if dry_run else []))
    assert done.returncode == 1
    what = "to migrate" if dry_run else "migrated"
    assert done.stdout == f"1 up to date, 1 {what}, 4 failed, 2 of kinds that the app does not have\n"
    lines = done.stderr.splitlines()
    for line, said in zip(
        lines,
        [
            "plait: room/broken could not be migrated to state_version 2: @migrate(from_=1) raised KeyError: 'n'",
            "plait: room/changed: the stored state does not fit its class's type: Expected `int`, got `str`, at /score",
            "plait: room/newer was stored with state_version 3, this code has 2",
            "plait: room/wrong could not be migrated to state_version 2: the result of the migrations is not a state "
            "of Room: Expected `int`, got `str`, at /score",
        ],
        strict=True,
    ):
        assert line.startswith(said)
    after = await states(store)
    if not dry_run:
        assert after.pop("room/old") == (1, 2, {"score": 5, "title": "untitled"})
        del before["room/old"]
    assert after == before


async def test_a_type_that_changed_without_a_state_version_is_found(folder: Path) -> None:
    await stored(folder, ("room/one", 1, b'{"n":1}'), ("room/two", 1, b'{"score":1}'))
    (folder / "game.py").write_text(EVOLVED.replace("state_version = 2", "").replace("@migrate(from_=1)", ""))
    for arguments in (["--dry-run"], []):
        line = complaint(folder, "migrate", "game:app", *arguments)
        assert line.startswith("plait: room/one: the stored state does not fit its class's type: ")


@pytest.mark.parametrize("store", ["Room", 'Room, store=SqliteStore("plait.db")'])
async def test_a_dry_run_looks_at_a_store_that_is_served_and_a_migration_does_not_begin(
    folder: Path, store: str
) -> None:
    imports = "from plait import Plait, SqliteStore, Thread"
    source = EVOLVED.replace("from plait import Plait, Thread", imports).replace("Plait(Room)", f"Plait({store})")
    (folder / "next.py").write_text(source)
    with Process("game:app", cwd=folder) as server:
        async with connected(server.address, "/threads/room/one") as client, http(server.address) as web:
            assert await client.call("add") == 1
            done = plait(folder, "migrate", "next:app", "--dry-run")
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith("0 up to date, 1 to migrate, 0 failed, ")
            assert await client.call("add") == 2
            assert "in use by another server" in complaint(folder, "migrate", "next:app")
            assert (await web.get("/threads/room/one")).json() == {"n": 2}
    assert plait(folder, "migrate", "next:app").stdout.startswith("0 up to date, 1 migrated, 0 failed, ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["game"], "write module:attribute"),
        (["game:text"], "game:text is a str, not a Plait: write game:app"),
        (["game:Room"], "game:Room is a Thread class, not a Plait: write game:app"),
        (["missing:app"], "there is no module 'missing'"),
        (["game:app", "--dry-run"], "store"),
    ],
)
def test_migrate_says_what_is_wrong(folder: Path, arguments: list[str], says: str) -> None:
    assert says in complaint(folder, "migrate", *arguments)
    assert not (folder / "plait.db").exists()


# types


def test_types_writes_what_clients_need_to_know(folder: Path) -> None:
    done = plait(folder, "types", "game:app", "--out", "client/src")
    assert (done.returncode, done.stderr) == (0, "")
    text = (folder / "client" / "src" / "plait-types.ts").read_text()
    assert "  add(): number;\n" in text
    assert "export const roomSchema = " in text
    kinds = json.loads((folder / "client" / "src" / "plait-types.json").read_text())["kinds"]
    assert kinds["room"]["rpcs"]["edition"]["result"] == {"type": "string"}
    assert not (folder / "plait.db").exists()


def test_types_check_fails_when_the_app_has_changed(folder: Path) -> None:
    arguments = ("types", "game:app", "--out", "types")
    line = complaint(folder, *arguments, "--check")
    assert "plait-types.ts" in line
    assert "plait-types.json" in line
    assert not (folder / "types").exists()
    assert plait(folder, *arguments).returncode == 0
    assert plait(folder, *arguments, "--check").returncode == 0
    (folder / "game.py").write_text(GAME.replace("-> int", "-> bool"))  # Another size: the .pyc is of this second.
    assert "`plait types game:app --out types`" in complaint(folder, *arguments, "--check")
    assert "  add(): number;\n" in (folder / "types" / "plait-types.ts").read_text()


@each_case(
    ("arguments", "says"),
    [
        (["game"], "write module:attribute"),
        (["game:text"], "game:text is a str, not a Plait: write game:app"),
        (["odd:Room"], "odd:Room is a Thread class, not a Plait: write odd:app"),
        (["threads_only:Room"], "not a Plait: make one, app = Plait(Room), and write threads_only:app"),
        (["odd:app"], "room: rpc add, argument n: "),
        (["game:app", "--out", "game.py"], "cannot write to game.py"),
    ],
)
def test_types_says_what_is_wrong(folder: Path, arguments: list[str], says: str) -> None:
    (folder / "odd.py").write_text(GAME.replace("def add(self)", "def add(self, n: complex)"))
    (folder / "threads_only.py").write_text(GAME.replace("app = Plait(Room)", ""))
    assert says in complaint(folder, "types", *arguments, *([] if "--out" in arguments else ["--out", "types"]))


def test_openapi_prints_the_document_or_writes_it(folder: Path) -> None:
    done = plait(folder, "openapi", "game:app", "--title", "The game", "--version", "2")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["info"] == {"title": "The game", "version": "2"}
    assert "/threads/room/{thread}/rpc/edition" in document["paths"]
    assert plait(folder, "openapi", "game:app", "--out", "openapi.json").stdout == ""
    assert json.loads((folder / "openapi.json").read_text())["paths"] == document["paths"]
    assert not (folder / "plait.db").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["odd:app"], "room: rpc add, argument n: "),
        (["game:text"], "game:text is a str, not a Plait"),
        (["game:app", "--out", "nowhere/a.json"], "cannot write to nowhere/a.json"),
    ],
)
def test_openapi_says_what_is_wrong(folder: Path, arguments: list[str], says: str) -> None:
    (folder / "odd.py").write_text(GAME.replace("def add(self)", "def add(self, n: complex)"))
    assert says in complaint(folder, "openapi", *arguments)


def test_the_variables_of_the_commands_are_known_to_the_settings() -> None:
    groups = [
        [cli[name][each] for each in cli[name] if each[0] != "-"] or [cli[name]] for name in cli if name[0] != "-"
    ]
    arguments = [each for group in groups for command in group for each in command.assemble_argument_collection()]
    variables = {variable for each in arguments for variable in each.parameter.env_var or ()}
    assert variables | {"PLAIT_WORKER", *VARIABLES.values()} == COMMAND_VARIABLES | {"PLAIT_STORE"}


def test_the_command_says_what_there_is(folder: Path) -> None:
    done = plait(folder, "--help")
    assert done.returncode == 0
    for name in ("serve", "dev", "demo", "threads", "state", "migrate", "types", "openapi"):
        assert re.search(rf"\b{name}\b", done.stdout)


def _content(store: Path) -> list[str]:
    """Return the whole content of a store."""
    if store.is_dir():
        return [str(each) for each in store.iterdir()]
    try:
        with closing(sqlite3.connect(store)) as db:
            return [*db.iterdump()]
    except sqlite3.DatabaseError:
        return store.read_text().splitlines()
