"""What the docs show of a shell happens: each command is run, in the order of its page, and says what the page says."""

import html
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from tests.old_rooms import store_old_rooms
from tests.running import Process
from tests.test_docs import PAGES, ROOT, SECRETS, Block, programs

BIN: Final = Path(sys.executable).parent
# Commands that set up this very checkout, or what is built of it: `make test` itself has run or runs them.
INSTALLING: Final = re.compile(r"(pip (install|wheel)|make|cd .*npm (install|pack))\b")
# Commands of containers, and of the machine that runs them; test_docker.py runs what is inside.
OF_CONTAINERS: Final = re.compile(r"docker compose\b|curl https://")
# Commands that need the store for themselves, as their pages say.
ALONE: Final = ("plait restore", "plait store copy", "plait threads import")
FAIL: Final = """
import asyncio
from orders import Desk, app


async def main() -> None:
    async with app:
        desk = app.thread(Desk, "main")
        await desk.tasks.wait(await desk.call(Desk.begin, "books"))


asyncio.run(main())
"""


def store_failed_run(folder: Path) -> None:
    """Store a run of the first program about tasks that has failed."""
    (folder / "orders.py").write_text(programs("tasks")[0].code)
    subprocess.run([sys.executable, "-c", FAIL], cwd=folder, check=True, capture_output=True)


# What a page expects to find in the folder.
BEFORE: Final[Mapping[str, Callable[[Path], None]]] = {"evolution": store_old_rooms, "tasks": store_failed_run}


class Command(NamedTuple):
    """A command of a page and what it says."""

    command: str
    says: str


def steps(page: str) -> Iterator[Block | Command]:
    """Yield the programs and commands of a page in order."""
    text = PAGES[page].read_text()
    for title, code, transcript in re.findall(
        r'^```python title="([^"]+)"\n(.*?)^```$|^```console\n(.*?)^```$', text, re.MULTILINE | re.DOTALL
    ):
        if title:
            yield Block(title, code)
        for command, says in re.findall(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", transcript, re.MULTILINE):
            yield Command(re.sub(r"\s+#.*|\\\n", "", command).strip(), says)


def find_output(says: str) -> re.Pattern[str]:
    """Return what matches the output that a page shows: `…` stands for anything, and white space for none."""
    return re.compile(".*".join(re.escape(re.sub(r"\s", "", part)) for part in says.split("…")))


class Shell:
    """The folder, the environment and the server of a reader who follows a page."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._target = ""
        self._environment = {**SECRETS, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        self._server: Process | None = None

    def write(self, program: Block) -> None:
        """Write a program. What follows is asked of its app, if it has one."""
        (self._folder / program.title).write_text(program.code)
        if program.is_app:
            self.close()
            self._target = f"{Path(program.title).stem}:app"

    def run(self, command: str, says: str) -> None:
        """Run a command, and hold what it says against the page."""
        if (served := re.match(r"((?:\w+=\S+ +)*)plait serve (\S+)", command)) is not None:
            here = served[1].replace("sqlite:////var/lib/todos/", "sqlite:///other-")
            self.close()
            self.serve(served[2], dict(each.split("=", 1) for each in shlex.split(here)))
            return
        if command.startswith(ALONE):
            self.close()
        elif "localhost:8000" in command or command.startswith("plait backup"):
            command = command.replace("localhost:8000", self.serve(self._target).address)
        environment = {**os.environ, **self._environment}
        with subprocess.Popen(
            ["bash", "-c", f"set -euo pipefail; {command.replace('curl ', 'curl -sS ')}"],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdout is not None
            printed, pattern = "", find_output(says)
            for line in process.stdout:
                printed += line
                # One that follows a stream does not end by itself.
                if "curl -N" in command and pattern.match(re.sub(r"\s", "", printed)) is not None:
                    process.kill()
                    return
        assert pattern.fullmatch(re.sub(r"\s", "", printed)) is not None, f"{command} said:\n{printed}\nnot:\n{says}"
        fails = re.search(r"^plait: ", says, re.MULTILINE) is not None
        assert (process.returncode != 0) == fails, f"{command} exited with {process.returncode}"

    def serve(self, target: str, environment: Mapping[str, str] = {}) -> Process:
        """Return the server, which is started if it does not run."""
        if self._server is None:
            (self._folder / "pages").mkdir(exist_ok=True)
            self._server = Process(target, cwd=self._folder, environment={**SECRETS, **environment})
            self._server.start()
        return self._server

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.__exit__()
            self._server = None


@pytest.mark.parametrize("page", [page for page in PAGES if "```console" in PAGES[page].read_text()])
def test_the_commands_of_a_page_do_what_it_says(page: str, tmp_path: Path) -> None:
    if (prepare := BEFORE.get(page)) is not None:
        prepare(tmp_path)
    shell = Shell(tmp_path)
    try:
        shell.write((programs(page) or programs("README"))[0])
        for step in steps(page):
            if isinstance(step, Block):
                shell.write(step)
            elif INSTALLING.match(step.command) is None and OF_CONTAINERS.match(step.command) is None:
                shell.run(*step)
    finally:
        shell.close()


def test_the_program_of_the_demos_first_page_does_what_the_page_says(tmp_path: Path) -> None:
    text = html.unescape((ROOT / "examples" / "pages" / "index.html").read_text())
    (code,) = re.findall("<pre.*?><code>(.*?)</code>", text, re.DOTALL)
    (call,) = re.findall("<code class.*?>(.*?)</code>", text, re.DOTALL)
    shell = Shell(tmp_path)
    try:
        shell.write(Block("tally.py", code))
        for number in (1, 2):
            shell.run(call, f'{{"result":{number}}}')
    finally:
        shell.close()


def test_what_is_installed_and_made_is_there() -> None:
    commands = [step.command for page in PAGES for step in steps(page) if isinstance(step, Command)]
    made = [command.split()[1] for command in commands if command.startswith("make ")]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert made
    assert set(made) <= set(targets)


def test_every_command_is_in_a_transcript() -> None:
    texts = {page: path.read_text() for page, path in PAGES.items()}
    prose = {page: re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL) for page, text in texts.items()}
    command = re.compile(r"^(?: {4}|\t)(?:\$ |(?:curl|plait|pip|make|npm|mkdir|cd)\b).*", re.MULTILINE)
    shell = re.compile(r"^``` *(?:sh|bash|shell|zsh)\b.*", re.MULTILINE)
    assert [f"{page}: {line}" for page, text in prose.items() for line in command.findall(text)] == []
    assert [f"{page}: {line}" for page, text in texts.items() for line in shell.findall(text)] == []


def test_curl_is_there() -> None:
    assert shutil.which("curl") is not None
