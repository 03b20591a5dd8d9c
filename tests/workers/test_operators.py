"""Operators ask any worker about the threads of all of them, with the command line."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path

from tests.commands import Done, run_command
from tests.workers.group import Group
from tests.workers.members import JOINS, read_code

from plait import ThreadKey
from plait.store.shards import find_file

TOKEN = "the token of operators"


async def ask(folder: Path, *arguments: str, token: str = TOKEN) -> Done:
    """Run `plait threads`."""
    environment = {**os.environ, "PLAIT_OPERATOR_TOKEN": token}
    return await asyncio.to_thread(run_command, ["threads", *arguments], cwd=folder, environment=environment)


async def test_the_commands_see_and_close_what_all_workers_have(tmp_path: Path) -> None:
    names = [f"room-{number}" for number in range(20)]
    owned = [next(name for name in names if find_file(ThreadKey("room", name), 2) == owner) for owner in range(2)]
    environment = {"PLAIT_OPERATOR_TOKEN": TOKEN}
    with Group("tests.workers.member_apps:app", cwd=tmp_path, environment=environment) as group:
        url = f"http://{group.address}"
        sockets = {
            (user, name): [await join(group.address, name, user) for join in JOINS]
            for user in ("ada", "bob")
            for name in owned
        }
        shown = await ask(tmp_path, "awake", url)
        assert shown.returncode == 0, shown.stderr
        head, *rows, last = shown.stdout.splitlines()
        assert head.split() == ["thread", "sockets", "queue", "seconds", "turn"]
        assert sorted(rows) == sorted(f"room/{name:<{len(rows[0].split()[0]) - 5}}  4        0" for name in owned)
        assert last == "2 threads awake, 8 sockets"
        found = json.loads((await ask(tmp_path, "awake", url, "--json")).stdout)
        assert (found["threads"], found["sockets"], found["silent"]) == (2, 8, 0)

        assert (await ask(tmp_path, "kick", url, "--user", "ada")).stdout == "4 sockets closed\n"
        for name in owned:
            assert [await read_code(each) for each in sockets["ada", name]] == [4401, 4401]
        for name in owned:
            assert (await ask(tmp_path, "kick", url, "--thread", f"room/{name}")).stdout == "2 sockets closed\n"
            assert [await read_code(each) for each in sockets["bob", name]] == [4401, 4401]
        assert "Traceback" not in group.log.read_text()


COMPLAINTS = [
    (["awake", "{url}"], "", "set PLAIT_OPERATOR_TOKEN to the operator_token of the server"),
    (["awake", "{url}"], "another token", "refused: this needs the operator's token"),
    (["awake", "{url}/elsewhere"], TOKEN, "refused: it has no operator_token, or is no plait server"),
    (["awake", "plait.db"], TOKEN, "'plait.db' is not the URL of a server, such as http://localhost:8000"),
    (["awake", "http://127.0.0.1:1"], TOKEN, "does not answer: .*refused"),
    (["kick", "{url}"], TOKEN, "name either --user or --thread"),
    (["kick", "{url}", "--thread", "room"], TOKEN, "refused: name a user, .* or a thread"),
]


async def test_the_commands_say_what_is_wrong_also_that_a_worker_does_not_answer(tmp_path: Path) -> None:
    with Group("tests.workers.member_apps:app", cwd=tmp_path, environment={"PLAIT_OPERATOR_TOKEN": TOKEN}) as group:
        url = f"http://{group.address}"
        for arguments, token, why in COMPLAINTS:
            done = await ask(tmp_path, *(each.format(url=url) for each in arguments), token=token)
            assert done.returncode == 1
            assert re.fullmatch(f"plait: .*{why}.*\n", done.stderr), done.stderr
        pid = group.hurt(1, signal.SIGSTOP)
        try:
            done = await ask(tmp_path, "awake", url)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert done.returncode == 1
        assert done.stderr == "plait: 1 of its workers or nodes did not answer\n"
