"""The parent goes on when the system starts no further process for a while."""

import asyncio
import errno
import os
import signal
import socket
import sys
from typing import Any

import pytest

from plait.web.workers.parent import Parent

# A worker that is ready at once.
WORKER = """
import socket, sys, time

control = socket.socket(fileno=int(sys.argv[2]))
control.send(b"lr")
while True:
    control.send(b".")
    time.sleep(0.1)
"""


async def test_a_worker_that_the_system_cannot_start_is_started_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[asyncio.subprocess.Process] = []
    real, refusals, is_up, is_again = asyncio.create_subprocess_exec, 0, asyncio.Event(), asyncio.Event()

    async def start(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        nonlocal refusals
        if len(started) == 2 and refusals < 2:
            refusals += 1
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        started.append(await real(*arguments, **options))
        if len(started) == 3:
            is_again.set()
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    with socket.socket() as listener:
        running = asyncio.create_task(Parent([sys.executable, "-c", WORKER], 2, listener).run(is_up.set))
        try:
            async with asyncio.timeout(20):
                await is_up.wait()
                started[1].kill()
                again = asyncio.create_task(is_again.wait())
                await asyncio.wait([again, running], return_when=asyncio.FIRST_COMPLETED)
            assert not running.done()
            assert caplog.text.count("worker 1 could not be started") == refusals == 2
        finally:
            again.cancel()
            if not running.done():
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.wait([running], timeout=20)
            for each in started:
                if each.returncode is None:
                    each.kill()
        assert await running == 0
