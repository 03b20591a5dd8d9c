"""The pages for contributors name existing things, and CI runs all checks."""

import re
import subprocess

import yaml
from tests.test_docs import ROOT, anchors, links
from tests.test_layers import LAYERS

PAGES = {name: ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md")}
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split())
# Where the files are that the pages name.
FOLDERS = (ROOT, ROOT / "server/plait", ROOT / "tests/server/parts")


def test_links_lead_somewhere() -> None:
    broken = [
        f"{name}: {path.relative_to(ROOT)}#{anchor}"
        for name, page in PAGES.items()
        for path, anchor in links(page)
        if not path.exists() or (anchor and anchor not in anchors(path))
    ]
    assert broken == []


def test_the_files_that_are_named_are_there() -> None:
    names = {name for page in PAGES.values() for name in re.findall(r"[\w/]+\.py\b", page.read_text())}
    assert len(names) > 8
    assert sorted(name for name in names if not any((folder / name).is_file() for folder in FOLDERS)) == []


def test_what_is_to_be_made_can_be_made() -> None:
    text = "".join(page.read_text() for page in PAGES.values())
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    runs = "\n".join(step.get("run", "") for step in workflow["jobs"]["test"]["steps"])
    made = set(re.findall(r"(?:\$ |`)make ([\w-]+)", text))
    runs = re.sub(r"\w+=\S*?\{\{.*?\}\}|\w+=\S+", "", runs)
    made.update(word for line in re.findall(r"make (.*)", runs) for word in line.split())
    assert {"test", "test-all", "soak", "fuzz"} <= made <= TARGETS


def test_help_names_every_target() -> None:
    said = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^make ([\w-]+) +\S", said, re.MULTILINE)) == TARGETS


def test_the_layers_are_in_their_order() -> None:
    drawing = re.search(r"^testing  adapters .* plait_schemas$", PAGES["CONTRIBUTING.md"].read_text(), re.MULTILINE)
    assert drawing is not None
    rows = [row[0].removeprefix("plait.") for row in LAYERS if len(row) == 1 and row[0] != "plait"]
    assert drawing[0].split() == rows[::-1]


def test_ci_runs_each_python_that_the_package_is_for() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == named
