"""The README and the docs are right: names exist, and programs run."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import msgspec
import pytest
import yaml
from tests.commands import Done, run_program
from tests.running import Process

import plait
import plait_client
from plait import PlaitError
from plait.cli.main import cli
from plait.instruments.prometheus import METRICS
from plait.limits import Limits
from plait.settings import Settings
from plait.state.retention import Retention

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = {path.stem: path for path in (README, *sorted((ROOT / "docs").glob("*.md")))}
MKDOCS = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
# The entries of each group of the site's navigation, the pages under a page, and where those that have moved are.
GROUPS: dict[str, list[str]] = {
    group: [page for entry in entries for page in entry.values()]
    for each in MKDOCS["nav"]
    for group, entries in each.items()
}
UNDER: dict[str, list[str]] = MKDOCS["extra"]["under"]
MOVED: dict[str, str] = MKDOCS["extra"]["moved"]
REFERENCE = "\n".join(path.read_text() for name, path in PAGES.items() if name.startswith("reference-"))
DOCS = "\n".join(path.read_text() for path in PAGES.values())
# What the apps of the pages have in their environment; the first signs the ids of threads of those with agents.
SECRETS: dict[str, str] = dict.fromkeys(
    ("PLAIT_SECRET", "DIARY_SECRET", "NOTES_ADMIN_TOKEN"), "a secret of the docs, long enough to sign tokens"
)
PROGRAM_PATH = os.pathsep.join(str(ROOT / each) for each in ("server", "client/python", "schemas"))


class Block(NamedTuple):
    """A block of Python on a page; one with a title is a whole program, in a file of that name."""

    title: str
    code: str

    @property
    def is_app(self) -> bool:
        """Whether it is there to be served."""
        return re.search(r"^app = (Plait|FastAPI)\(", self.code, re.MULTILINE) is not None

    @property
    def has_tests(self) -> bool:
        """Whether it is there for pytest."""
        return self.title.startswith("test_")


def blocks(page: str) -> list[Block]:
    """Return the blocks of Python on a page."""
    text = PAGES[page].read_text()
    return [Block(*each) for each in re.findall(r'^```python(?: title="([^"]+)")?\n(.*?)^```$', text, re.M | re.S)]


def find_code(page: str, title: str) -> str:
    """Return the code of a block of any language, by its title."""
    (code,) = re.findall(rf'^```\w+ title="{re.escape(title)}"\n(.*?)^```$', PAGES[page].read_text(), re.M | re.S)
    assert isinstance(code, str)
    return code


def programs(page: str) -> list[Block]:
    """Return the programs of a page, after the game of the README if the page has no app of its own."""
    own = [block for block in blocks(page) if block.title]
    if not own or own[0].is_app:
        return own
    return [next(block for block in blocks("README") if block.is_app), *own]


def programs_together(page: str) -> list[list[Block]]:
    """Return the programs of a page, each alone; only tests that follow each other are together."""
    found: list[list[Block]] = []
    for block in programs(page):
        if found and block.has_tests and found[-1][-1].has_tests:
            found[-1].append(block)
        else:
            found.append([block])
    return found


def run(blocks: Sequence[Block], folder: Path) -> Done:
    """Run a program in a folder; those that have tests are pytest's."""
    environment = {**os.environ, **SECRETS, "PYTHONPATH": PROGRAM_PATH}
    titles = [block.title for block in blocks]
    if not blocks[0].has_tests:
        return run_program(*titles, cwd=folder, environment=environment)
    # Without plugins that take longer to import than such a test runs.
    plugins = ("langsmith_plugin", "valkey", "hypothesispytest", "xdist")
    options = [option for plugin in plugins for option in ("-p", f"no:{plugin}")]
    command = [sys.executable, "-W", "error", "-m", "pytest", *options, *titles]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


# Code


@pytest.mark.parametrize("page", [page for page in PAGES if programs(page)])
def test_the_programs_of_a_page_run_one_after_the_other(page: str, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    with ExitStack() as stack:
        server: Process | None = None
        for together in programs_together(page):
            title, code = together[0]
            file = tmp_path / title
            for block in together:
                (tmp_path / block.title).write_text(block.code)
            if together[0].is_app:
                stack.close()
                server = stack.enter_context(Process(f"{file.stem}:app", cwd=tmp_path, environment=SECRETS))
                continue
            assert server is not None
            if "localhost:8000" in code:
                file.write_text(code.replace("localhost:8000", server.address))
            else:
                # It has the store to itself.
                stack.close()
            done = run(together, tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr


def test_the_tutorial_and_the_first_page_have_nothing_but_programs() -> None:
    assert [block.code for page in ("index", "tutorial") for block in blocks(page) if not block.title] == []
    assert len(programs("tutorial")) == 4


def test_the_first_page_has_the_game_of_the_readme() -> None:
    assert programs("index")[0] == programs("README")[0]


def test_python_that_is_no_program_is_python_all_the_same() -> None:
    for page in PAGES:
        for block in blocks(page):
            compile("async def wrapped():\n" + re.sub("^", "    ", block.code, flags=re.MULTILINE), page, "exec")


# Names


def test_every_public_name_is_in_the_docs() -> None:
    names = {*plait.__all__, *plait_client.__all__}
    assert sorted(name for name in names if not re.search(rf"\b{name}\b", DOCS)) == []


@pytest.mark.parametrize("package", [plait, plait_client], ids=["plait", "plait_client"])
def test_the_reference_has_every_public_name_once(package: object) -> None:
    name = getattr(package, "__name__", "")
    shown = re.findall(rf"^::: {name}\.(\w+)$", REFERENCE, re.MULTILINE)
    assert sorted(shown) == sorted(getattr(package, "__all__", ()))


def options_in_the_reference(name: str) -> str:
    """Return the options with which the reference shows a public name."""
    found = re.search(rf"^::: {re.escape(name)}\n((?: .*\n)*)", REFERENCE, re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("package", [plait, plait_client], ids=["plait", "plait_client"])
def test_the_reference_shows_what_a_class_inherits_from_one_that_is_not_public(package: ModuleType) -> None:
    public = [getattr(package, name) for name in package.__all__]
    for cls in (each for each in public if isinstance(each, type)):
        hidden = [base for base in cls.__mro__ if base.__module__.startswith("plait") and base not in public]
        if any(not name.startswith("_") for base in hidden for name in vars(base)):
            options = options_in_the_reference(f"{package.__name__}.{cls.__name__}")
            assert "inherited_members: true" in options or "members: " in options, cls
    assert package is plait or "inherited_members: true" in options_in_the_reference("plait_client.AwaitableEdit")


@pytest.mark.parametrize(
    ("shown", "spelling", "pages"),
    [
        (plait.Connection, "connection", ("connections", "hooks", "presence", "identity")),
        (plait.Context, "ctx", ("agents", "agentuity", "agentscope", "kv")),
    ],
)
def test_the_reference_shows_of_a_class_what_authors_use(shown: type, spelling: str, pages: tuple[str, ...]) -> None:
    listed = re.search(r"members: \[(.*)\]", options_in_the_reference(f"plait.{shown.__name__}"))
    assert listed is not None
    names = listed[1].split(", ")
    used = set(re.findall(rf"\b{spelling}\.([a-z_]+)\b", "".join(PAGES[page].read_text() for page in pages)))
    assert sorted(used - set(names)) == []
    assert [name for name in names if not hasattr(shown, name) and f"self.{name}" not in inspect.getsource(shown)] == []


def test_every_setting_and_its_variable_are_in_the_docs() -> None:
    settings = [field.name for field in msgspec.structs.fields(Settings)]
    limits = [f"limits_{field.name}" for field in msgspec.structs.fields(Limits)]
    assert [name for name in (*settings, *limits) if f"PLAIT_{name.upper()}" not in DOCS] == []


def test_the_fields_of_limits_and_retention_are_in_their_tables() -> None:
    for struct, page in ((Limits, "limits"), (Retention, "history")):
        text = PAGES[page].read_text()
        assert [field.name for field in msgspec.structs.fields(struct) if f"| `{field.name}` |" not in text] == []


def test_everything_that_a_thread_has_is_in_the_guide() -> None:
    pages = (
        "threads",
        "state",
        "hooks",
        "calls",
        "connections",
        "lifecycle",
        "history",
        "conflicts",
        "presence",
        "evolution",
    )
    guide = "".join(PAGES[page].read_text() for page in pages)
    names = [name for name in vars(plait.Thread) if not name.startswith("_")]
    assert [name for name in names if not re.search(rf"\b{name}\b", guide)] == []


def test_every_metric_is_in_its_table_with_its_type_and_labels() -> None:
    section = PAGES["metrics"].read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(plait_\w+)` \| (\w+) \| (.*?) \|", section, re.MULTILINE)
    found = [(name, type, tuple(re.findall(r"`(\w+)`", labels))) for name, type, labels in rows]
    assert found == [(metric.name, metric.type, metric.labels) for metric in METRICS]


def test_every_error_is_in_the_table_with_its_code_and_status() -> None:
    text = PAGES["http"].read_text()
    errors = [each for name in plait.__all__ if isinstance(each := getattr(plait, name), type)]
    rows = [f"| `{e.code}` | {e.status} | `{e.__name__}` |" for e in errors if issubclass(e, PlaitError)]
    assert [row for row in rows if row not in text] == []


THREAD_STATE = """
    threadId agentId userId createdAt children terminated context execution _notPackableRuntimeContext
    getMessages getMessage injectMessage queueMessage updateMessage deleteMessage
    writeFile readFile readFileStream statFile readdirFile unlinkFile mkdirFile rmdirFile getFileStats
    grepFiles findFiles getFileThumbnail
    runCode
    getChildThread getParentThread notifyParent setStatus
    loadModel loadPrompt loadAgent getPromptNames getAgentNames getModelNames env envType setEnv
    queueTool invokeTool
    scheduleEffect getScheduledEffects removeScheduledEffect
    emit getValue setValue terminate
"""


def test_every_member_of_a_standard_thread_is_in_the_first_column_of_its_page() -> None:
    cells = "\n".join(re.findall(r"^\| ([^|]*) \|", PAGES["standard-agents"].read_text(), re.MULTILINE))
    found = re.findall(r"`(\w+)(?:\([^`]*\))?`", cells)
    assert [name for name in THREAD_STATE.split() if name not in found] == []


def test_every_command_is_in_the_docs() -> None:
    names = [name for name in cli if not name.startswith("-")]
    assert len(names) > 5
    assert [name for name in names if f"| `plait {name} " not in DOCS and f"| `plait {name}`" not in DOCS] == []


# The JavaScript client

JS_SOURCES = ROOT / "client" / "js" / "src"


def exported(entry: str) -> dict[str, str]:
    """Return the names that an entry of the package exports, and the code that declares each."""
    source = (JS_SOURCES / entry).read_text()
    found = dict.fromkeys(re.findall(r"^export (?:interface|type|function) (\w+)\b", source, re.MULTILINE), source)
    for names, file in re.findall(r"^export (?:type )?\{ (.*?) \} from \"\./(.*?)\.js\";$", source, re.MULTILINE):
        found |= dict.fromkeys(names.split(", "), (JS_SOURCES / f"{file}.ts").read_text())
    return found


def members(source: str, name: str) -> set[str]:
    """Return the public members of an interface or a class, none of any other declaration."""
    body = "".join(re.findall(rf"^export (?:interface|class) {name}\b.*? \{{\n(.*?)^\}}$", source, re.M | re.S))
    body = re.sub(r"/\*\*(?:(?!\*/).)*@internal.*?\*/\n.*?\n", "", body, flags=re.DOTALL)
    return set(re.findall(r"^  (?:static |readonly |async |get )*(\w+)[?<(:]", body, re.MULTILINE)) - {
        "constructor",
        "__v_skip",
    }


# What the methods of a client come from, and those of a part, which only the client itself calls.
HIDDEN = {"Keeper", "TextPart", "UndoPart", "ComparePart", "MessagesPart", "TasksPart", "FilesPart", "QueriesPart"}
PARTS = (JS_SOURCES / "parts.ts").read_text()


@pytest.mark.parametrize("entry", ["index.ts", "react.ts", "codemirror.ts"])
def test_the_reference_of_the_javascript_client_has_every_name_and_member(entry: str) -> None:
    shown = set(re.findall(r"`(?:ThreadClient\.)?(\w+)[^`\n]*`", PAGES["javascript-reference"].read_text()))
    names = exported(entry)
    assert names
    assert sorted(set(names) - shown) == []
    inside = {member for name, source in names.items() if name not in HIDDEN for member in members(source, name)}
    if entry == "index.ts":
        inside |= members(PARTS, "TextMethods") | members(PARTS, "UndoMethods")
        inside |= members((JS_SOURCES / "queries-part.ts").read_text(), "QueryMethods")
        assert {"state", "callWith", "onRefused", "splice", "canUndo", "older", "getItem", "initialState"} <= inside
    assert sorted(inside - shown) == []


def test_the_reference_of_the_javascript_client_has_every_code_of_its_error() -> None:
    codes = re.findall(r"^  \| \"(\w+)\"", (JS_SOURCES / "errors.ts").read_text(), re.MULTILINE)
    assert len(codes) > 30
    assert [code for code in codes if f"`{code}`" not in PAGES["javascript-reference"].read_text()] == []


# Links


def anchors(page: Path) -> set[str]:
    """Return the link targets on a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield the file and the anchor of each link that stays within the repository."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield (page.parent / path if path else page), anchor


def test_links_lead_somewhere() -> None:
    broken = [
        f"{page}: {path.relative_to(ROOT)}#{anchor}"
        for page, file in PAGES.items()
        for path, anchor in links(file)
        if not path.exists() or (anchor and anchor not in anchors(path))
    ]
    assert broken == []


def test_the_rows_of_a_table_have_as_many_cells_as_its_head() -> None:
    # GitHub ends a cell at a bar within code, and the site shows a backslash before it.
    tables = [
        (page, table) for page, file in PAGES.items() for table in re.findall(r"(?:^\|.*\n)+", file.read_text(), re.M)
    ]
    assert len(tables) > 100
    assert [
        (page, row)
        for page, table in tables
        for row in table.splitlines()
        if row.count("|") != table.partition("\n")[0].count("|")
    ] == []


def test_every_page_is_once_in_the_sites_navigation_or_under_another_page() -> None:
    listed = [page for pages in (*GROUPS.values(), *UNDER.values()) for page in pages]
    assert sorted(listed) == sorted(f"{page}.md" for page in PAGES if page != "README")
    assert [above for above in UNDER if above not in listed] == []


def test_the_sites_navigation_is_short() -> None:
    assert len(GROUPS) == 6
    assert "Threads" in GROUPS
    assert sum(map(len, GROUPS.values())) <= 30


def test_a_page_says_first_for_whom_it_is() -> None:
    others = {page: file.read_text() for page, file in PAGES.items() if page not in ("README", "index")}
    assert [page for page, text in others.items() if re.match(r"# .+\n\nFor \w", text) is None] == []
