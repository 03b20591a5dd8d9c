"""The parent of several workers starts them, starts them again, replaces them and ends them."""

import fcntl
import os
import pty
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from tests.commands import Done, run_command
from tests.integration.socket_client import TIMEOUT
from tests.schedules import in_soak
from tests.workers.group import Group

APP = """
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from plait import Plait, Thread

VERSION = 1

class Room(Thread):
    initial_state = {"n": 0}

plait = Plait(Room, store=os.environ.get("STORE", "sqlite:///game.db"))
other = Plait(Room, store="memory://")

@plait.on_startup
async def begin():
    print("begun in each", file=sys.stderr)

@plait.on_startup(once=True)
def begin_once():
    print("begun once", file=sys.stderr)

@asynccontextmanager
async def run(api):
    async with plait.lifespan(), other:
        yield

def find(request):
    place = os.environ.get("PLAIT_WORKER")
    return JSONResponse({"pid": os.getpid(), "version": VERSION, "place": place})

async def hang(request):
    time.sleep(600)

async def fork(request):
    if (pid := os.fork()) == 0:
        signal.pause()
    return JSONResponse(pid)

routes = [Route("/where", find), Route("/hang", hang), Route("/fork", fork)]
# It is imported in half of the time of FastAPI, with which an app is mounted in the same way.
api = Starlette(routes=[*routes, Mount("/live", plait), Mount("/other", other)], lifespan=run)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "game.py").write_text(APP)
    return tmp_path


@pytest.fixture
def group(folder: Path) -> Iterator[Group]:
    with Group("game:api", cwd=folder) as group:
        yield group


def ask(group: Group, path: str = "/where") -> httpx.Response:
    """Send a request on a connection of its own."""
    return httpx.get(f"http://{group.address}{path}", timeout=TIMEOUT)


def plait(folder: Path, *arguments: str, **more: str) -> Done:
    """Run a command to its end."""
    return run_command(arguments, cwd=folder, environment={**os.environ, **more})


def is_listening(process: psutil.Process) -> bool:
    """Whether a process accepts connections."""
    return any(each.status == psutil.CONN_LISTEN for each in process.net_connections("tcp"))


def pids(group: Group) -> set[int]:
    """Return the processes of the workers."""
    return {each.pid for each in group.processes().values()}


# Start


def test_all_workers_accept_on_one_port_and_end_together_without_a_trace(group: Group, folder: Path) -> None:
    seen: set[int] = set()
    group.until(lambda: seen.add(ask(group).json()["pid"]) or seen == pids(group))  # type: ignore[func-returns-value]
    assert sorted(each.name for each in folder.glob("*.db")) == ["game.0.db", "game.1.db"]
    # A command that the app starts is no worker.
    assert ask(group).json()["place"] is None
    links = group.folder()
    assert links.stat().st_mode & 0o777 == 0o700
    assert sorted(each.name for each in links.iterdir()) == ["0.0.sock", "0.1.sock", "1.0.sock", "1.1.sock"]
    assert group.end() == 0
    assert "Traceback" not in group.log.read_text()
    assert not links.exists()


def test_on_startup_runs_in_each_worker_and_once_in_the_first_before_the_second_starts(group: Group) -> None:
    log = group.log.read_text()
    assert (log.count("begun in each"), log.count("begun once")) == (2, 1)
    assert log.index("begun once") < log.index("worker 1 ")
    group.hurt(0)
    group.until(lambda: group.starts(0) == 2)
    log = group.log.read_text()
    assert (log.count("begun in each"), log.count("begun once")) == (3, 1)


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        ("nonsense(", 1, "SyntaxError"),
        (APP.replace('print("begun in each"', 'raise LookupError("no such", "thing"'), 3, "no such"),
        *in_soak(
            (APP.replace("plait = Plait(", "plait = Plait(limits=3, *("), 1, "SyntaxError"),
            (
                APP.replace("store=os", "ping_interval=0.0, store=os"),
                1,
                "ping_interval=0.0: must be a number of seconds",
            ),
        ),
    ],
)
def test_what_is_wrong_with_an_app_is_said_once(folder: Path, source: str, code: int, says: str) -> None:
    (folder / "game.py").write_text(source)
    command = ["serve", "game:api", "--port", "0", "--workers"]
    one, three = (plait(folder, *command, count, STORE="memory://") for count in "13")
    assert (one.returncode, three.returncode) == (code, code)
    assert three.stderr.count(says) == one.stderr.count(says) > 0
    assert three.stdout == ""


@pytest.mark.release
def test_an_app_that_a_function_wraps_has_its_store_made_for_all_workers(folder: Path) -> None:
    (folder / "wrapped.py").write_text(
        "from plait import Plait, Thread\n\nclass Room(Thread):\n    initial_state = {'n': 0}\n\n"
        "plait = Plait(Room, store='sqlite:///w.db')\n\n"
        "async def app(scope, receive, send):\n    await plait(scope, receive, send)\n"
    )
    with Group("wrapped:app", cwd=folder) as group:
        for name in ("one", "two", "three", "four"):
            answer = httpx.put(f"http://{group.address}/threads/room/{name}", json={"n": 1}, timeout=TIMEOUT)
            assert answer.status_code == 200
        assert sorted(each.name for each in folder.glob("*.db")) == ["w.0.db", "w.1.db"]
        group.hurt(1)
        group.until(lambda: group.starts(1) == 2)
        assert group.end() == 0


def test_an_app_without_a_plait_is_refused_and_told_what_was_searched(folder: Path) -> None:
    (folder / "empty.py").write_text("async def app(scope, receive, send):\n    raise AssertionError\n")
    for count in "12":
        done = plait(folder, "serve", "empty:app", "--port", "0", "--workers", count)
        assert done.returncode == 1
        assert "empty:app has no Plait: it is none, its .app and .routes lead to none" in done.stderr


@pytest.mark.release
def test_a_warning_of_a_setting_is_said_once(folder: Path) -> None:
    with Group("game:api", cwd=folder, environment={"PLAIT_LIMIT_STATE": "1"}, count=3) as group:
        said = group.count_lines("PLAIT_LIMIT_STATE is not a setting")
        assert said == group.count_lines("worker 0 .* PLAIT_LIMIT_STATE is not a setting") == 2  # There are two Plaits.


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("sqlite:///old.db", "the store old.db has 1 file, and each of 2 workers needs one: start fewer workers"),
        *in_soak(("sqlite:///three.db?files=3", "has 2 files, not 3")),
    ],
)
def test_too_few_files_for_the_workers_are_refused_with_the_command_that_splits(
    folder: Path, store: str, says: str
) -> None:
    for url in ("sqlite:///old.db", "sqlite:///three.db?files=2"):
        assert plait(folder, "threads", "import", "game:plait", "missing", STORE=url).returncode == 1
        assert plait(folder, "migrate", "game:plait", STORE=url).returncode == 0
    done = plait(folder, "serve", "game:api", "--port", "0", "--workers", "2", STORE=store)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("plait: ")
    assert says in line
    assert "`plait store copy" in line


def test_a_store_object_that_processes_cannot_share_is_refused(folder: Path) -> None:
    head = "from plait import MemoryStore, Plait, Thread\nclass Room(Thread): pass\n"
    (folder / "game.py").write_text(f"{head}app = Plait(Room, store=MemoryStore())\n")
    done = plait(folder, "serve", "game:app", "--port", "0", "--workers", "2")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "store: 2 workers cannot share MemoryStore: pass a URL" in line


@pytest.mark.release
def test_each_worker_has_a_memory_of_its_own(folder: Path) -> None:
    with Group("game:api", cwd=folder, environment={"STORE": "memory://"}) as group:
        assert ask(group).is_success
        assert group.end() == 0
    assert list(folder.glob("*.db")) == []


def test_each_worker_serves_the_threads_of_all_workers_for_each_mounted_plait(group: Group) -> None:
    seen: set[int] = set()
    for place in ("live", "other"):
        for number in range(4):
            url = f"http://{group.address}/{place}/threads/room/{number}"
            state = {"n": f"{place} {number}"}
            assert httpx.put(url, json=state, timeout=TIMEOUT).status_code == 200
            for _ in range(5):
                seen.add(ask(group).json()["pid"])
                assert ask(group, f"/{place}/threads/room/{number}").json() == state
    assert seen == pids(group)


# Deaths


@pytest.mark.release
def test_a_worker_that_cannot_start_again_is_started_with_growing_pauses_until_a_reload(
    group: Group, folder: Path
) -> None:
    (folder / "game.py").write_text("nonsense(")
    group.hurt(0)
    group.until(lambda: group.count_lines("worker 0 has ended with exit code 1; it is started again in 4 s"))
    log = group.log.read_text()
    found = [line.rpartition("again ")[2] for line in log.splitlines() if "it is started again" in line]
    assert found == ["at once", "in 1 s", "in 2 s", "in 4 s"]
    assert ask(group).is_success
    (folder / "game.py").write_text(APP)
    group.signal(signal.SIGHUP)
    group.until(lambda: group.starts(0) == 2)
    assert group.end() == 0


def test_a_worker_whose_loop_hangs_is_killed_with_its_stack_in_the_log(group: Group) -> None:
    before = pids(group)

    def hang() -> None:
        with pytest.raises(httpx.TransportError):
            ask(group, "/hang")

    hanging = threading.Thread(target=hang)
    hanging.start()
    group.until(lambda: group.count_lines("has not answered for 10 s and is killed"))
    group.until(lambda: group.starts(0) + group.starts(1) == 3)
    hanging.join()
    assert len(pids(group) & before) == 1
    assert group.count_lines("in hang$") + group.count_lines("line \\d+ in hang") > 0
    assert group.end() == 0


@pytest.mark.release
def test_a_forked_child_keeps_neither_the_store_nor_the_port(group: Group, folder: Path) -> None:
    child = ask(group, "/fork").json()
    try:
        for worker in (0, 1):
            group.hurt(worker)
            group.until(lambda worker=worker: group.starts(worker) == 2)  # type: ignore[misc]
        assert group.end() == 0
        group.start()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.release
def test_the_first_start_of_a_worker_may_fail_when_another_one_is_up(folder: Path) -> None:
    second = 'os.write(marks, b"."), os.fstat(marks).st_size == 2 and os.kill(os.getpid(), 9), print("begun in each"'
    source = APP.replace('print("begun in each"', second)
    (folder / "game.py").write_text(f"{source}\nmarks = os.open('marks', os.O_CREAT | os.O_APPEND | os.O_WRONLY)\n")
    with Group("game:api", cwd=folder) as group:
        group.until(lambda: group.starts(1) == 1)
        assert group.count_lines("worker 1 was killed by SIGKILL; it is started again at once") == 1
        assert (group.starts(0), len(pids(group))) == (1, 2)
        assert group.end() == 0


def test_what_killed_workers_have_left_is_removed_at_the_next_start(group: Group, folder: Path) -> None:
    left, running = group.folder(), group.processes().values()
    held, link = (left.with_name(f"{left.name}-{name}") for name in ("held", "link"))
    held.mkdir()
    link.symlink_to(folder)
    holder = os.open(held, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_SH)
    try:
        group.end(signal.SIGKILL)
        for each in running:
            each.kill()
            group.until_gone(each.pid)
        group.start()
        group.until(lambda: not left.exists())  # Another server on this machine may be removing it.
        assert (held.exists(), (folder / "game.py").exists()) == (True, True)
    finally:
        link.unlink()
        held.rmdir()
        os.close(holder)


def test_workers_end_in_order_when_their_parent_is_killed(group: Group, folder: Path) -> None:
    running, links = pids(group), group.folder()
    group.end(signal.SIGKILL)
    for each in running:
        group.until_gone(each)
    assert not links.exists()
    assert group.count_lines("Application shutdown complete") == 2
    group.start()
    assert ask(group).is_success


# Reloads


def test_a_reload_replaces_all_workers_and_refuses_no_connection(group: Group, folder: Path) -> None:
    before, versions, is_ended = pids(group), set(), threading.Event()
    failures: list[Exception] = []
    # The statuses of requests to threads: one that reaches its owner as this begins to end is told to come again.
    statuses: Counter[int] = Counter()

    def load(number: int) -> None:
        url = f"/live/threads/room/{number}"
        httpx.put(f"http://{group.address}{url}", json={"n": number})
        while not is_ended.is_set():
            try:
                versions.add(ask(group).raise_for_status().json()["version"])
                found = ask(group, url)
                statuses[found.status_code] += 1
                assert found.json() == {"n": number} or found.headers["retry-after"]
            except (httpx.HTTPError, AssertionError, KeyError) as error:
                failures.append(error)

    loaders = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for each in loaders:
        each.start()
    try:
        group.until(lambda: versions)
        (folder / "game.py").write_text(APP.replace("VERSION = 1", "VERSION = 2"))
        group.signal(signal.SIGHUP)
        group.until(lambda: group.count_lines("all workers are replaced"))
        group.until(lambda: 2 in versions)
    finally:
        is_ended.set()
        for each in loaders:
            each.join()
    assert failures == []
    assert set(statuses) <= {200, 503}
    assert statuses[503] < 10 < statuses[200], statuses
    assert versions == {1, 2}
    assert not pids(group) & before
    assert ask(group).json()["version"] == 2
    assert group.log.read_text().count("begun once") == 1
    assert group.end() == 0


def test_a_connection_that_a_worker_has_accepted_is_served_before_it_is_replaced(group: Group) -> None:
    former = group.processes()[0]
    while True:
        with socket.create_connection(("127.0.0.1", group.port)) as bare:
            port = bare.getsockname()[1]
            if port not in {each.raddr.port for each in former.net_connections("tcp") if each.raddr}:
                continue
            group.signal(signal.SIGHUP)
            group.until(lambda: not is_listening(former))
            bare.settimeout(0.5)
            with pytest.raises(TimeoutError):
                bare.recv(1)
            bare.sendall(b"GET /where HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            bare.settimeout(TIMEOUT)
            assert b'"pid":%d' % former.pid in b"".join(iter(lambda: bare.recv(4096), b""))
            break
    group.until(lambda: group.count_lines("all workers are replaced"))


def test_a_reload_of_a_broken_app_keeps_the_workers(group: Group, folder: Path) -> None:
    before = pids(group)
    (folder / "game.py").write_text("nonsense(")
    group.signal(signal.SIGHUP)
    group.until(lambda: group.count_lines("the replacement of worker 0 has not started: the reload is given up"))
    assert pids(group) == before
    assert ask(group).json()["version"] == 1


@pytest.mark.release
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_hangup_reloads_while_there_is_a_terminal_and_ends_all_when_it_is_closed(folder: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # It is ignored if the tests run with nohup.
        os.chdir(folder)
        command = [sys.executable, "-m", "plait.cli", "serve", "game:api", "--port", "0", "--workers", "2"]
        os.execv(command[0], command)
    read_until(terminal, b"plait serves")
    os.kill(pid, signal.SIGHUP)
    read_until(terminal, b"all workers are replaced")
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0


def read_until(file: int, text: bytes) -> None:
    """Read from a file until a text comes."""
    found = b""
    while text not in found:
        found += os.read(file, 4096)


# With other features


@pytest.mark.release
def test_tls_is_in_the_workers(folder: Path) -> None:
    make = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    subject = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *make.split(), *subject], cwd=folder, check=True, capture_output=True)
    options = ["--tls-certificate", "cert.pem", "--tls-key", "key.pem"]
    with Group("game:api", cwd=folder, options=options) as group:
        context = ssl.create_default_context(cafile=folder / "cert.pem")
        seen: set[int] = set()

        def look() -> bool:
            seen.add(httpx.get(f"https://{group.address}/where", verify=context, timeout=TIMEOUT).json()["pid"])
            return seen >= pids(group)

        group.until(look)
        group.signal(signal.SIGHUP)
        group.until(lambda: group.count_lines("all workers are replaced"))
        group.until(look)
        assert group.end() == 0
        assert "Traceback" not in group.log.read_text()


def test_commands_for_stores_know_that_workers_have_the_files_open(group: Group, folder: Path) -> None:
    checked = plait(folder, "check", "game.db")
    assert checked.returncode == 0, checked.stderr
    assert plait(folder, "backup", "game.db", "copy.db").returncode == 0
    assert sorted(each.name for each in folder.glob("copy*.db")) == ["copy.0.db", "copy.1.db"]
    assert plait(folder, "threads", "list", "game.db").returncode == 0
    for arguments in (
        ["migrate", "game:plait"],
        ["serve", "game:api", "--port", "0"],
        ["store", "copy", "game.db", "sqlite:///new.db?files=3"],
        ["restore", "copy.db", "game.db"],
    ):
        done = plait(folder, *arguments)
        assert done.returncode == 1, arguments
        assert "in use by another server" in done.stderr, (arguments, done.stderr)
    assert group.end() == 0
