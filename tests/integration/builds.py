"""Installs and builds of tests, once a run: the first worker that needs one makes it, the others wait."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
from filelock import FileLock

__all__ = ["CLIENT", "Builds", "run_node"]

ROOT: Final = Path(__file__).parents[2]
CLIENT: Final = ROOT / "client" / "js"


class Builds:
    """The folder of a run, which all its workers share."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        own = factory.getbasetemp()
        self._folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def build(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return a folder that `make` has filled."""
        folder, partial = self._folder / name, self._folder / f"{name}.partial"
        with self._locked(name):
            if not folder.exists():
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir()
                make(partial)
                partial.rename(folder)
        return folder

    def install(self, folder: Path, *options: str) -> Path:
        """Install the packages of a folder where that has not been done. Returns the folder."""
        with self._locked(f"install-{folder.name}"):
            if not _is_installed(folder):
                npm = shutil.which("npm")
                if npm is None:
                    raise RuntimeError(f"npm is missing: install Node.js 20.19 or newer with npm, to build {folder}")
                subprocess.run([npm, "install", "--no-audit", "--no-fund", *options], cwd=folder, check=True)
        return folder

    def compile_client(self) -> None:
        """Compile the TypeScript client, where that has not been done since it was changed."""
        self.install(CLIENT)
        compiled = CLIENT / "dist" / "react.js"
        newest = max(file.stat().st_mtime for file in (CLIENT / "src").iterdir())
        with self._locked("compile-client"):
            if not compiled.is_file() or compiled.stat().st_mtime < newest:
                # Without the bundle of `npm run build`: that is a file of the repository, which tests leave alone.
                run_node(CLIENT, ["typescript/bin/tsc", "-p", "tsconfig.build.json"])

    def _locked(self, name: str) -> FileLock:
        return FileLock(self._folder / f"{name}.lock")


def run_node(folder: Path, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a program of a folder's packages. Fails with what it said."""
    program, *rest = arguments
    command = ["node", f"node_modules/{program}", *rest]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _is_installed(folder: Path) -> bool:
    package = json.loads((folder / "package.json").read_text())
    wanted: dict[str, str] = package.get("dependencies", {}) | package.get("devDependencies", {})
    for name, version in wanted.items():
        file = folder / "node_modules" / name / "package.json"
        if not file.is_file() or (version[0].isdigit() and json.loads(file.read_text())["version"] != version):
            return False
    return True
