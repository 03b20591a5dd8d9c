"""The files of the guide to Docker: what the image runs, run without Docker, and what Compose is told."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml
from tests.running import Process
from tests.schedules import in_soak
from tests.test_deploy import KNOWN
from tests.test_docs import PAGES, ROOT, find_code, programs

from plait.settings import Settings

DOCKERFILE = [
    (instruction, value)
    for instruction, value in re.findall(r"^([A-Z]+) (.*)$", find_code("docker", "Dockerfile"), re.MULTILINE)
]
COMPOSE = yaml.safe_load(find_code("docker", "compose.yaml"))
COMMAND = json.loads(dict(DOCKERFILE)["CMD"])
SITE = "game.example.com"


def read_environment(data: Path) -> dict[str, str]:
    """Return the variables of the container, with another folder for its volume."""
    image = dict(value.split("=", 1) for instruction, value in DOCKERFILE if instruction == "ENV")
    found = {**image, **COMPOSE["services"]["app"]["environment"]}
    found = {name: re.sub(r"\$\{SITE:.*?\}", SITE, value) for name, value in found.items()}
    assert "$" not in "".join(found.values())
    return {name: value.replace("/data", str(data)) for name, value in found.items()}


def run(command: str, *, path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell, with the programs of an environment."""
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-c", command], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def find_command(subject: str) -> str:
    """Return what the page has a container run with plait."""
    (command,) = re.findall(rf"^\$ docker compose {subject} app (plait .*)$", PAGES["docker"].read_text(), re.MULTILINE)
    assert isinstance(command, str)
    return command


def write_app(folder: Path) -> None:
    """Write the app of the first page, as the page says."""
    (app,) = [block for block in programs("index") if block.is_app]
    (folder / app.title).write_text(app.code)


@pytest.fixture(params=["tests", *in_soak(["fresh"])])
def binaries(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of the tests' environment, and in soak those of a fresh one, made by the lines of the Dockerfile."""
    if request.param == "tests":
        return Path(sys.executable).parent
    fresh, context, image = (tmp_path_factory.mktemp(name) for name in ("fresh", "context", "image"))
    subprocess.run([sys.executable, "-m", "venv", fresh], check=True)
    write_app(context)
    (wheel,) = re.findall(r"^\$ (pip wheel .*)$", PAGES["docker"].read_text(), re.MULTILINE)
    build(wheel.replace("my-app", str(context)).replace("path/to/plait", str(ROOT)), path=fresh / "bin", cwd=image)
    for instruction, value in DOCKERFILE:
        if instruction == "COPY":
            copy_files(value.split()[0], context, image)
        elif instruction == "RUN" and not value.startswith("useradd"):
            build(value, path=fresh / "bin", cwd=image)
    build("python -c 'import game'", path=fresh / "bin", cwd=image)
    return fresh / "bin"


def copy_files(pattern: str, context: Path, folder: Path) -> None:
    """Do what COPY does."""
    for path in context.glob("*" if pattern == "." else pattern):
        (folder / path.name).write_bytes(path.read_bytes())


def build(command: str, *, path: Path, cwd: Path) -> None:
    """Run a line that must succeed, without the packages of the tests."""
    done = run(f"unset PYTHONPATH; {command}", path=path, cwd=cwd)
    assert done.returncode == 0, done.stderr


def test_the_image_serves_the_site_keeps_its_data_and_takes_a_backup(binaries: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_app(tmp_path)
    program, verb, target, *options = COMMAND
    assert (program, verb) == ("plait", "serve")
    (check,) = [value.partition(" CMD ")[2] for instruction, value in DOCKERFILE if instruction == "HEALTHCHECK"]
    backup, restore = (find_command(subject).replace("/data", str(data)) for subject in ("exec", "run --rm"))
    server = Process(target, cwd=tmp_path, environment=read_environment(data), options=options)
    check = check.replace(":8000", f":{server.port}")
    room, host = f"http://{server.address}/threads/game-room/one", {"Host": SITE}
    state = {"players": ["Ada"], "score": 1, "status": "waiting"}
    with server:
        build(check, path=binaries, cwd=tmp_path)
        assert httpx.put(room, json=state, headers=host).status_code == 200
        assert httpx.get(room, headers={"Host": "elsewhere.example.com"}).status_code == 421
        build(backup, path=binaries, cwd=tmp_path)
        httpx.put(room, json=state | {"score": 2}, headers=host)
        assert server.end() == 0
        assert run(check, path=binaries, cwd=tmp_path).returncode != 0
        server.start()
        assert httpx.get(room, headers=host).json()["score"] == 2
        server.end()
        build(restore, path=binaries, cwd=tmp_path)
        server.start()
        assert httpx.get(room, headers=host).json() == state
    # Nothing is stored outside of the volume.
    assert {path.name for path in tmp_path.iterdir()} <= {"data", "game.py", "__pycache__", "server.log"}


def test_compose_runs_the_image_behind_a_proxy() -> None:
    app, proxy = COMPOSE["services"]["app"], COMPOSE["services"]["caddy"]
    instructions = dict(DOCKERFILE)
    assert read_environment(Path("/data")).keys() <= KNOWN
    assert app["volumes"] == [f"data:{instructions['VOLUME']}"]
    assert {volume.partition(":")[0] for each in (app, proxy) for volume in each["volumes"]} == COMPOSE[
        "volumes"
    ].keys()
    assert shlex.split(proxy["command"])[-1] == f"app:{instructions['EXPOSE']}"
    # All headers of a proxy are trusted, since no client reaches the port without the proxy.
    assert "*" in COMMAND
    assert "ports" not in app
    seconds = int(app["stop_grace_period"].removesuffix("s"))
    assert seconds > 2 * Settings().shutdown_timeout


def test_the_image_stops_the_way_the_guide_to_deploying_says() -> None:
    unit = re.findall(r"^TimeoutStopSec=(\d+)$", PAGES["deploying"].read_text(), re.MULTILINE)
    assert [COMPOSE["services"]["app"]["stop_grace_period"]] == [f"{each}s" for each in unit]
    assert "--proxy-headers" in COMMAND
