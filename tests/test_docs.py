"""What README and docs say is there, and runs."""

import re
from pathlib import Path

import msgspec

import plait
from plait.limits import Limits
from plait.settings import Settings

ROOT = Path(__file__).parents[1]
DOCS = "\n".join(path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))))


def test_the_code_of_the_readme_serves_the_game(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    names: dict[str, object] = {}
    exec(code[1].replace("sqlite:///game.db", f"sqlite:///{tmp_path}/game.db"), names)
    assert isinstance(names["app"], plait.Plait)


def test_every_public_name_is_in_the_docs() -> None:
    assert [name for name in plait.__all__ if not re.search(rf"\b{name}\b", DOCS)] == []


def test_every_setting_and_its_variable_are_in_the_docs() -> None:
    settings = [field.name for field in msgspec.structs.fields(Settings)]
    limits = [f"limits_{field.name}" for field in msgspec.structs.fields(Limits)]
    assert [name for name in (*settings, *limits) if f"PLAIT_{name.upper()}" not in DOCS] == []
