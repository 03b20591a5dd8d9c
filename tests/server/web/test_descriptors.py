"""What is logged of a limit on file descriptors that is too low, or reached, by servers in processes of their own."""

import asyncio
import errno
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from tests.integration.socket_client import bare_socket
from tests.running import Process

from plait.web.descriptors import Descriptors

TIMEOUT = 30.0
LACK = "no file descriptors are left"


@contextmanager
def limited(folder: Path, soft: int, hard: int) -> Iterator[Path]:
    """Serve an app with so many file descriptors; yields the file of its log."""
    command = f"ulimit -Sn {soft} && ulimit -Hn {hard} && exec {sys.executable} -m plait.cli serve game:app --port 0"
    (folder / "game.py").write_text("from plait import Plait, Thread\nclass Room(Thread): ...\napp = Plait(Room)\n")
    log = folder / "log"
    with log.open("w") as file:
        server = subprocess.Popen(["sh", "-c", command], cwd=folder, stdout=subprocess.PIPE, stderr=file, text=True)
    assert server.stdout is not None
    with server, server.stdout:
        line = server.stdout.readline()
        assert "plait serves" in line, log.read_text()
        yield log
        server.terminate()


def test_a_limit_that_may_be_raised_is_raised(tmp_path: Path) -> None:
    with limited(tmp_path, 100, 10_000) as log:
        pass
    assert "file descriptors" not in log.read_text()


def test_a_limit_below_what_the_limits_allow_is_warned_about_at_the_start(tmp_path: Path) -> None:
    with limited(tmp_path, 100, 300) as log:
        pass
    (line,) = [line for line in log.read_text().splitlines() if "file descriptors" in line]
    assert re.search(r"WARNING plait.sockets: only 300 file descriptors are allowed, too few for the 5000 ", line)


async def test_asyncios_own_loop_has_one_line_for_what_it_cannot_accept(caplog: pytest.LogCaptureFixture) -> None:
    descriptors, loop = Descriptors(), asyncio.get_running_loop()
    for _ in range(3):
        descriptors.handle(loop, {"message": "cannot accept", "exception": OSError(errno.EMFILE, "too many")})
    descriptors.handle(loop, {"message": "something else", "exception": OSError(errno.EPIPE, "broken")})
    first, second = caplog.records
    assert LACK in first.message
    assert first.exc_info is None
    assert "something else" in second.message


async def test_descriptors_that_run_out_are_logged_once(tmp_path: Path) -> None:
    with Process("tests.integration.apps:app", cwd=tmp_path) as server, ExitStack() as stack:
        most = psutil.Process(server.pid).num_fds() + 5
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (most, most))
        for _ in range(20):
            stack.enter_context(bare_socket(server.address))
        async with asyncio.timeout(TIMEOUT):
            while LACK not in server.log.read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        for _ in range(20):
            stack.enter_context(bare_socket(server.address))
        assert server.log.read_text().count(LACK) == 1
        assert "Traceback" not in server.log.read_text()
