"""mypy finds nothing wrong in the programs of the README and the docs, nor in the examples."""

import re
from pathlib import Path

from tests.test_docs import PAGES, programs
from tests.typing.test_checkers import MYPY, ROOT, run

# The programs are for readers: they may leave out annotations, and what is None in other apps only.
LOOSE = (
    "--check-untyped-defs",
    "--no-strict-optional",
    "--ignore-missing-imports",
    "--disable-error-code=func-returns-value",
)


def test_the_programs_of_the_readme_and_the_docs_are_typed(tmp_path: Path) -> None:
    files = []
    for page in PAGES:
        own = {Path(block.title).stem: block.code for block in programs(page)}
        imports = re.compile(rf"^(\s*from )({'|'.join(own)})( import)", re.MULTILINE)
        for name, code in own.items():
            # Several pages have a program of the same name.
            files.append(tmp_path / f"{page.replace('-', '_')}_{name}.py")
            files[-1].write_text(imports.sub(rf"\g<1>{page.replace('-', '_')}_\2\3", code) if own else code)
    assert len(files) > 40
    assert run(*MYPY, *LOOSE, *map(str, files), paths=[tmp_path]) == ""


def test_the_examples_are_typed() -> None:
    assert run(*MYPY, "--strict", *map(str, sorted((ROOT / "examples").glob("*.py")))) == ""
