"""Gets the published peers ready: their packages into folders that git ignores, the worker into one file."""

import os
import shutil
import subprocess
from pathlib import Path

import msgspec

__all__ = ["AGENTUITY", "COLYSEUS", "PEER", "YJS", "PeerError", "install", "prepare"]

PEER = Path(__file__).parent / "cloudflare"
COLYSEUS = Path(__file__).parent / "colyseus"
AGENTUITY = Path(__file__).parent / "agentuity"
YJS = Path(__file__).parent / "yjs"
ENVIRONMENT = {**os.environ, "CI": "1", "WRANGLER_SEND_METRICS": "false"}


class PeerError(Exception):
    """The peer cannot be installed; the message says why."""


class Package(msgspec.Struct):
    """The parts of a package.json that are used."""

    version: str = ""
    dependencies: dict[str, str] = {}


def prepare(log: Path) -> None:
    """Install and bundle the worker, unless that is up to date."""
    install(PEER, log)
    source, bundle = PEER / "src" / "worker.ts", PEER / "dist" / "worker.js"
    if not bundle.exists() or bundle.stat().st_mtime < source.stat().st_mtime:
        run(PEER, log, "node_modules/.bin/wrangler", "deploy", "--dry-run", "--outdir", "dist")


def install(folder: Path, log: Path) -> None:
    """Install the packages that a folder asks for, unless they are there."""
    for command in ("node", "npm"):
        if shutil.which(command) is None:
            raise PeerError(f"{command} is not installed; run with --without {folder.name} to do without the peer")
    wanted = read(folder).dependencies
    if any(read(folder / "node_modules" / name).version != version for name, version in wanted.items()):
        run(folder, log, "npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")


def read(folder: Path) -> Package:
    """The package.json of a folder, an empty one when there is none."""
    path = folder / "package.json"
    return msgspec.json.decode(path.read_bytes(), type=Package) if path.exists() else Package()


def run(folder: Path, log: Path, *command: str) -> None:
    """Run one command in a peer's folder; the error contains its output."""
    with log.open("w") as output:
        done = subprocess.run(
            command, cwd=folder, env=ENVIRONMENT, stdout=output, stderr=subprocess.STDOUT, timeout=600, check=False
        )
    if done.returncode:
        raise PeerError(f"{' '.join(command)} failed:\n{log.read_text()[-2000:]}")
