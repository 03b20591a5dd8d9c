"""A server is ended while a program runs: the program ends with it, and runs at most once."""

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.socket_client import http
from tests.running import Process
from tests.schedules import in_soak
from tests.server.parts.workshop import until

APP = "tests.integration.killed_program:app"
UNKNOWN = "It is not known whether this call has had its effect, as it was cut off."


async def call(web: httpx.AsyncClient, method: str, *args: Any) -> Any:
    answer = await web.post(f"/threads/desk/one/rpc/{method}", json={"args": args})
    answer.raise_for_status()
    return answer.json()["result"]


def find_programs(server: int) -> dict[int, str]:
    """Return the processes that a server has started, with their commands."""
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    return {int(child): Path(f"/proc/{child}/cmdline").read_text() for child in children}


def is_running(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@pytest.mark.parametrize("end", [signal.SIGKILL, *in_soak([signal.SIGTERM])])
async def test_a_program_ends_with_its_server_and_the_agent_goes_on(end: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    environment = {
        "DESK_LOG": str(log),
        "PLAIT_SECRET": "of the test",
        "PLAIT_STORE": f"sqlite:///{tmp_path / 'desk.db'}",
        "PLAIT_SHUTDOWN_TIMEOUT": "0",
    }
    with Process(APP, cwd=tmp_path, environment=environment) as server:
        async with http(server.address) as web:
            await call(web, "ask", "Pay.")
            await until(lambda: call(web, "find_paid"))
            ((program, command),) = find_programs(server.pid).items()
            assert "runner.js" in command
        server.end(end)
        await until(lambda: not is_running(program))
        server.start()
        async with http(server.address) as web:
            await until(lambda: call(web, "is_answered"))
            # The first program has paid, and did not end.
            assert await call(web, "look") == [
                ["user", "Pay."],
                ["tool", UNKNOWN],
                ["tool", '{"status":"success","value":"number 7"}'],
                ["assistant", "2 programs: number 7"],
            ]
            assert await call(web, "find_paid") == [3, 3]
        assert log.read_text() == "paid 3\npaid 3\n"
