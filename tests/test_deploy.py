"""The files in deploy/ are valid, and start nodes that plait would start."""

import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

import msgspec
import yaml

from plait.cli.main import cli
from plait.cluster.node_config import NodeConfig
from plait.settings import COMMAND_VARIABLES, Settings

DEPLOY = Path(__file__).parents[1] / "deploy"
KNOWN = {*COMMAND_VARIABLES, *(f"PLAIT_{field.name.upper()}" for field in msgspec.structs.fields(Settings))}


def read(name: str) -> Any:
    """Return the one document of a file."""
    return yaml.safe_load((DEPLOY / name).read_text())


def check_node(command: list[str], variables: Mapping[str, str]) -> NodeConfig:
    """Check that a command starts a node, with variables that plait knows; return its place."""
    assert command[0].endswith("plait")
    names = {name for name in variables if name.startswith("PLAIT_")}
    assert names <= KNOWN, names - KNOWN
    # What the command line does not say comes from the environment.
    _, bound, _ = cli.parse_args(command[1:], exit_on_error=False, print_error=False)
    assert bound.arguments["cluster"]
    found = {
        "PLAIT_CLUSTER": "true",
        "PLAIT_NODE": bound.arguments.get("node", variables.get("PLAIT_NODE", "")),
        "PLAIT_LISTEN_NODES": bound.arguments.get("listen_nodes", variables.get("PLAIT_LISTEN_NODES", "")),
        **{name: value for name, value in variables.items() if "NODE_ADDRESS" in name or "SECRET" in name},
    }
    place = NodeConfig.from_environment(found)
    assert place is not None
    assert place.secret
    return place


def test_the_compose_file_starts_two_nodes_behind_nginx() -> None:
    file = read("compose.yaml")
    services = file["services"]
    nodes = {name: each for name, each in services.items() if "plait serve" in str(each.get("command"))}
    places = {name: check_node(shlex.split(each["command"]), each["environment"]) for name, each in nodes.items()}
    assert {name: place.name for name, place in places.items()} == {"a": "a", "b": "b"}
    for name, place in places.items():
        assert place.address == f"{name}:{place.port}"
    for each in services.values():
        assert set(each.get("depends_on", ())) <= services.keys()
        assert ("image" in each) != ("build" in each)
        for volume in each.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in file["volumes"] or (DEPLOY / source).is_file()
    nginx = (DEPLOY / "nginx.conf").read_text()
    assert set(re.findall(r"^\s*server (\S+):8000 ", nginx, re.MULTILINE)) == nodes.keys()


def test_the_nginx_file_is_well_formed_and_passes_sockets_on() -> None:
    text = re.sub(r"#.*", "", (DEPLOY / "nginx.conf").read_text())
    assert text.count("{") == text.count("}")
    for line in filter(None, map(str.strip, text.splitlines())):
        assert line[-1] in "{};", line
    upstreams = set(re.findall(r"upstream (\w+) {", text))
    assert set(re.findall(r"proxy_pass http://(\w+);", text)) == upstreams
    # The port of the compose file is in the origin of a page, and must be in the host, too.
    for needed in ("Upgrade $http_upgrade", 'Connection "upgrade"', "Host $http_host", "X-Forwarded-For $remote_addr"):
        assert f"proxy_set_header {needed};" in text
    assert re.search(r"location = /metrics {\s+return 404;", text)


def haproxy(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start HAProxy."""
    command = shutil.which("haproxy") or "/usr/sbin/haproxy"
    pipe = subprocess.PIPE
    return subprocess.Popen([command, *arguments], stdout=pipe, stderr=pipe, text=True, **options)


def read_haproxy() -> str:
    """Return the settings in the docs, without the certificate, which is not there."""
    (text,) = re.findall(r"```haproxy\n(.*?)```", (DEPLOY.parent / "docs" / "deploying.md").read_text(), re.DOTALL)
    return text.replace(" ssl crt /etc/haproxy/game.pem", "")


def test_the_settings_for_haproxy_in_the_docs_are_accepted(tmp_path: Path) -> None:
    text = read_haproxy()
    assert "option httpchk GET /readyz" in text
    (tmp_path / "haproxy.cfg").write_text(text)
    with haproxy("-c", "-f", str(tmp_path / "haproxy.cfg")) as process:
        _, complaints = process.communicate()
    assert (process.returncode, complaints) == (0, "")


class Ready(BaseHTTPRequestHandler):
    """Answers each request with 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_haproxy_asks_another_node_at_once_if_one_has_gone_away(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Ready)) for _ in range(2)]
        for node in nodes:
            Thread(target=node.serve_forever).start()
            stack.callback(node.shutdown)
        front = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        # The checks do not find within the test that a node is away.
        text = read_haproxy().replace("check inter 2s", "check inter 60s").replace(":443", f"fd@{front.fileno()}")
        lines = "".join(f"    server n{node.server_port} 127.0.0.1:{node.server_port}\n" for node in nodes)
        (tmp_path / "haproxy.cfg").write_text(text.replace("    server one 127.0.0.1:8000\n", lines))
        process = stack.enter_context(haproxy("-db", "-f", str(tmp_path / "haproxy.cfg"), pass_fds=(front.fileno(),)))
        stack.callback(process.kill)
        for number in range(5):
            with urlopen(f"http://127.0.0.1:{front.getsockname()[1]}/", timeout=30) as answer:
                assert answer.status == 200
            if number == 0:
                nodes[0].shutdown()
                nodes[0].server_close()


def test_the_service_is_one_that_systemd_accepts(tmp_path: Path) -> None:
    text = (DEPLOY / "plait@.service").read_text()
    command = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert len(command) == 1
    variables = {"PLAIT_LISTEN_NODES": "10.0.0.1:7946", "PLAIT_CLUSTER_SECRET": "x"}
    assert check_node(shlex.split(command[0].replace("%i", "a")), variables).name == "a"
    assert all(name in KNOWN for name in re.findall(r"PLAIT_[A-Z_]+", text))
    # The app is not there.
    (tmp_path / "plait@a.service").write_text(text.replace("/srv/game/.venv/bin/plait", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "plait@a.service")],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "plait@a.service" not in done.stderr, done.stderr


def test_the_kubernetes_manifest_starts_nodes_that_find_each_other() -> None:
    documents = {
        (each["kind"], each["metadata"]["name"]): each
        for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    }
    versions = {"Service": "v1", "PodDisruptionBudget": "policy/v1", "StatefulSet": "apps/v1"}
    assert all(each["apiVersion"] == versions[kind] for (kind, _), each in documents.items())
    pods = documents["StatefulSet", "game"]["spec"]
    headless = documents["Service", pods["serviceName"]]["spec"]
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"]
    labels = pods["template"]["metadata"]["labels"]
    assert pods["selector"]["matchLabels"] == labels
    assert headless["selector"] == documents["Service", "game"]["spec"]["selector"] == labels
    (container,) = pods["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value", "from-elsewhere") for each in container["env"]}
    assert variables["PLAIT_NODE_ADDRESS"] == f"$(PLAIT_NODE).{pods['serviceName']}:7946"
    variables |= {"PLAIT_NODE": "game-0", "PLAIT_NODE_ADDRESS": "game-0.game-nodes:7946"}
    place = check_node(container["args"], variables)
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"http": 8000, "nodes": place.port}
    assert headless["ports"][0]["port"] == place.port
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports


def test_each_file_is_in_the_docs() -> None:
    page = (Path(__file__).parents[1] / "docs" / "cluster.md").read_text()
    assert [file.name for file in sorted(DEPLOY.iterdir()) if file.name not in page] == []
