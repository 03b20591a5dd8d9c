"""`plait tasks`: an operator finds the runs of tasks in a store, and retries or cancels them in a running server."""

import json
import os
import re
from pathlib import Path

import httpx
import pytest
from tests.commands import Done, run_command
from tests.integration.socket_client import TIMEOUT
from tests.running import Process

ROOT = Path(__file__).parents[2]
TOKEN = "the token of operators"
APP = """
from pathlib import Path

from plait import GiveUp, Plait, Step, Tasks, Thread, rpc, task


def fetch():
    if not Path("shop").exists():
        raise GiveUp("the shop is \\x1b[2Jclosed")
    return 3


class Desk(Thread[dict]):
    initial_state = {}
    tasks = Tasks()

    @task
    async def import_orders(self, step: Step, shop: str) -> int:
        return await step.do("fetch", fetch)

    @task
    async def wait(self, step: Step) -> None:
        step.status({"asked": True})
        await step.approval("go")

    @rpc
    async def begin(self, name: str, args: list) -> str:
        return (await self.tasks.run(name, *args)).id

    @rpc
    async def ended(self, id: str) -> str:
        run = await self.tasks.wait(id)
        return run.status


class Note(Thread[dict]):
    initial_state = {}


app = Plait(Desk, Note)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a working directory with an app in it."""
    (tmp_path / "desks.py").write_text(APP)
    return tmp_path


def serve(folder: Path, *options: str) -> Process:
    return Process("desks:app", cwd=folder, environment={"PLAIT_OPERATOR_TOKEN": TOKEN}, options=options)


def plait(folder: Path, *arguments: str, token: str = TOKEN) -> Done:
    """Run `plait tasks`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "PLAIT_OPERATOR_TOKEN": token}
    return run_command(["tasks", *arguments], cwd=folder, environment=environment)


def call(server: Process, name: str, method: str, *args: object) -> str:
    """Call an rpc of a desk."""
    url = f"http://{server.address}/threads/desk/{name}/rpc/{method}"
    answer = httpx.post(url, json={"args": args}, timeout=TIMEOUT)
    assert answer.is_success, answer.text
    return str(answer.json()["result"])


def rows(done: Done) -> list[list[str]]:
    """Return the rows of a table, without the times."""
    assert done.returncode == 0, done.stderr
    head, *found = (re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "T", line) for line in done.stdout.splitlines())
    assert re.split(r"  +", head) == ["thread", "run", "task", "status", "begun", "error or last status"]
    return [re.split(r"  +", line) for line in found]


def test_a_failed_run_is_found_among_the_threads_of_a_kind_with_and_without_a_server(folder: Path) -> None:
    with serve(folder) as server:
        for number in range(5):
            call(server, f"fine-{number}", "begin", "wait", [])
        id = call(server, "odd", "begin", "import_orders", ["toys"])
        assert call(server, "odd", "ended", id) == "failed"
        failed = ["desk/odd", id, "import_orders", "failed", "T", r"StepFailed: GiveUp: the shop is \x1b[2Jclosed"]
        assert rows(plait(folder, "desk")) == [failed]
    assert rows(plait(folder, "desk")) == [failed]
    assert rows(plait(folder, "list", "desk", "odd", "--store", "plait.db")) == [failed]
    assert rows(plait(folder, "note")) == []
    (line,) = plait(folder, "desk", "--json").stdout.splitlines()
    found = json.loads(line)
    assert (found["thread"], found["run"]["id"], found["run"]["args"]) == ("desk/odd", id, ["toys"])


@pytest.mark.parametrize("workers", [1, 2])
def test_failed_runs_are_retried_in_a_running_server_and_no_longer_found(folder: Path, workers: int) -> None:
    with serve(folder, f"--workers={workers}") as server:
        # Either worker owns some of the threads, and may be the one that is asked.
        ids = {name: call(server, name, "begin", "import_orders", ["toys"]) for name in ("a", "b", "c", "d")}
        assert {call(server, name, "ended", id) for name, id in ids.items()} == {"failed"}
        assert [run[:2] for run in rows(plait(folder, "desk"))] == [[f"desk/{name}", id] for name, id in ids.items()]
        (folder / "shop").touch()
        for name, id in ids.items():
            done = plait(folder, "retry", "desk", name, id, f"http://{server.address}")
            assert (done.returncode, done.stdout) == (0, f"{id} is waiting\n")
            assert call(server, name, "ended", id) == "done"
        assert rows(plait(folder, "desk")) == []
        (run,) = rows(plait(folder, "desk", "a"))
        assert run[:4] == ["desk/a", ids["a"], "import_orders", "done"]


def test_a_run_that_waits_is_listed_and_cancelled(folder: Path) -> None:
    with serve(folder) as server:
        id = call(server, "one", "begin", "wait", [])
        url = f"http://{server.address}"
        assert [run[1:3] + run[5:] for run in rows(plait(folder, "desk", "one"))] == [[id, "wait", '{"asked":true}']]
        assert plait(folder, "cancel", "desk", "one", id, url).stdout == f"{id} is cancelled\n"
        assert call(server, "one", "ended", id) == "cancelled"
        again = plait(folder, "cancel", "desk", "one", id, url)
        assert (again.returncode, again.stderr) == (1, f"plait: desk/one has no run {id} that is not over\n")


def test_the_command_says_what_is_wrong(folder: Path) -> None:
    with serve(folder) as server:
        call(server, "one", "begin", "wait", [])
        url = f"http://{server.address}"
        for arguments, why in [
            (["desk", "two"], "there is no thread desk/two"),
            (["desk", "--store", "elsewhere.db"], "there is no store elsewhere.db"),
            (["retry", "desk", "one", "x", url], "desk/one has no run x that has failed or was cancelled"),
            (["retry", "note", "one", "x", url], f"{url} refused: note has no tasks"),
            (
                ["retry", "letter", "one", "x", url],
                f"{url} refused: 'letter/one' is not a thread; name one as kind/name",
            ),
        ]:
            done = plait(folder, *arguments)
            assert done.returncode == 1
            assert re.fullmatch(f"plait: {why}\n", done.stderr), done.stderr
        refused = plait(folder, "cancel", "desk", "one", "x", url, token="another")
        assert "refused: this needs the operator's token" in refused.stderr
