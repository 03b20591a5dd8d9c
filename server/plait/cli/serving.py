"""`plait serve`, `dev` and `demo`: serve an app on this machine."""

import asyncio
import os
import sys
from functools import partial
from pathlib import Path
from socket import socket
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter, validators

from plait.app import Plait
from plait.cli.listening import bind, check_tls
from plait.cli.loading import check_target, find_plaits, load
from plait.cli.options import LoadError, Target, fail, give_up
from plait.cli.watching import run_and_watch
from plait.cluster.node_config import VARIABLES, NodeConfig, join_address
from plait.cluster.owners import Worker
from plait.errors import PlaitError
from plait.limits import UNLIMITED
from plait.settings import SettingError, Settings
from plait.store.sqlite.files import MOST_FILES
from plait.web.log_config import LogFormat, LogLevel, configure_logging
from plait.web.serve import serve
from plait.web.workers.control import LOADED, READY, Control
from plait.web.workers.parent import Parent

__all__ = ["Service", "demo", "dev", "serve_command"]

Host = Annotated[str, Parameter(help="Address to listen on.", env_var="PLAIT_HOST")]
Port = Annotated[
    int,
    Parameter(help="Port to listen on.", env_var="PLAIT_PORT", validator=validators.Number(gte=0, lte=65535)),
]
Workers = Annotated[
    int,
    Parameter(
        help="How many processes serve the app. Each owns some of the store's files.",
        env_var="PLAIT_WORKERS",
        validator=validators.Number(gte=1, lte=MOST_FILES),
    ),
]
Level = Annotated[LogLevel, Parameter(help="The lowest level that is logged.", env_var="PLAIT_LOG_LEVEL")]
Format = Annotated[LogFormat, Parameter(help="Log lines of text, or a JSON object a line.", env_var="PLAIT_LOG_FORMAT")]


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """The app, and the options of its server; a worker gets it as JSON."""

    target: str
    host: str
    certificate: str | None = None
    key: str | None = None
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    proxy_headers: bool = False
    trusted_proxies: str = "127.0.0.1"
    in_development: bool = False
    # A folder in which modules are searched first.
    folder: str | None = None

    def describe(self, port: int, *, workers: int = 1) -> str:
        """Return the line that tells where the app is served."""
        url = f"{'http' if self.certificate is None else 'https'}://{join_address(self.host, port)}"
        several = f" with {workers} workers" if workers > 1 else ""
        return f"plait serves {self.target} at {url}{several} (press Ctrl+C to stop)"

    def run(self, at: int | socket, *, control: Control | None = None) -> None:
        """Serve the app at a port, or a listening socket, until told to stop; exit with 3 if the app cannot start."""
        app, plaits = self._load()
        if NodeConfig.from_environment() is not None and len(plaits) > 1:
            fail("a node of a cluster serves one Plait: give each a server of its own")
        if control is not None:
            # Commands that the app starts, such as `plait`, are not this worker.
            Worker.leave_environment()
            control.tell(LOADED)
        settings = self._check(plaits, is_restart=control is not None and control.is_restart)
        bound = bind(self.host, at) if isinstance(at, int) else at
        line = self.describe(bound.getsockname()[1])
        started = partial(print, line, flush=True) if control is None else partial(control.tell, READY)
        is_started = serve(
            app,
            bound,
            started=started,
            ending=lambda: asyncio.gather(*(each.drain() for each in plaits)),
            log_level=self.log_level,
            shutdown_timeout=settings.shutdown_timeout,
            request_timeout=settings.request_timeout,
            limits=settings.limits or UNLIMITED,
            addresses=plaits[0].addresses,
            certificate=self.certificate,
            key=self.key,
            trusted_proxies=self.trusted_proxies if self.proxy_headers else None,
            control=control,
        )
        if not is_started:
            raise SystemExit(3)

    def _load(self) -> tuple[Any, list[Plait]]:
        """Return the app, and the Plaits in it."""
        if self.folder is not None and self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        try:
            app = load(self.target)
            return app, find_plaits(self.target, app)
        except (LoadError, PlaitError, SettingError) as error:
            give_up(error)

    def _check(self, plaits: list[Plait], *, is_restart: bool) -> Settings:
        """Check and prepare the Plaits of the app; return the settings of the server."""
        try:
            for number, each in enumerate(plaits):
                each.prepare_serving(self.host, number=number, in_development=self.in_development)
                each.check_settings()
                if not is_restart:
                    asyncio.run(each.check_store())
            return plaits[0].settings
        except (PlaitError, SettingError) as error:
            give_up(error)


def serve_command(
    target: Target,
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    workers: Workers = 1,
    tls_certificate: Annotated[
        str | None, Parameter(help="PEM file of the certificate.", env_var="PLAIT_TLS_CERTIFICATE")
    ] = None,
    tls_key: Annotated[str | None, Parameter(help="PEM file of its key.", env_var="PLAIT_TLS_KEY")] = None,
    log_level: Level = "info",
    log_format: Format = "text",
    proxy_headers: Annotated[
        bool,
        Parameter(help="Use X-Forwarded-For and X-Forwarded-Proto of trusted proxies.", env_var="PLAIT_PROXY_HEADERS"),
    ] = False,
    trusted_proxies: Annotated[
        str, Parameter(help="Addresses of trusted proxies, comma-separated.", env_var="PLAIT_TRUSTED_PROXIES")
    ] = "127.0.0.1",
    metrics: Annotated[bool, Parameter(help="Serve metrics for Prometheus at /metrics.", negative="")] = False,
    cluster: Annotated[
        bool, Parameter(help="Serve with others on the same store.", env_var=VARIABLES["cluster"], negative="")
    ] = False,
    node: Annotated[str, Parameter(help="The name of this node of the cluster.", env_var=VARIABLES["node"])] = "",
    listen_nodes: Annotated[
        str, Parameter(help="host:port at which the other nodes reach this one.", env_var=VARIABLES["listen"])
    ] = "",
    development: Annotated[bool, Parameter(show=False, negative="")] = False,
) -> None:
    """Serve an app: a Plait, or an ASGI app in which one is mounted."""
    check_tls(tls_certificate, tls_key)
    if metrics:
        os.environ["PLAIT_METRICS"] = "true"
    if cluster:
        _set_place(node, listen_nodes)
    elif node or listen_nodes:
        fail("--node and --listen-nodes are for a node of a cluster: add --cluster")
    service = Service(
        target=target,
        host=host,
        certificate=tls_certificate,
        key=tls_key,
        log_level=log_level,
        log_format=log_format,
        proxy_headers=proxy_headers,
        trusted_proxies=trusted_proxies,
        in_development=development,
    )
    _serve(service, port, workers)


def dev(
    target: Target,
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    workers: Workers = 1,
    log_level: Level = "debug",
    log_format: Format = "text",
) -> None:
    """Serve an app, and restart when a Python file in this folder changes."""
    try:
        check_target(target)
    except LoadError as error:
        give_up(error)
    command = [sys.executable, "-m", "plait.cli", "serve", target, "--development"]
    command += ["--host", host, "--port", str(port), "--workers", str(workers), "--log-level", log_level]
    command += ["--log-format", log_format]
    run_and_watch(command)


def demo(*, host: Host = "127.0.0.1", port: Port = 8000, workers: Workers = 1, log_level: Level = "info") -> None:
    """Serve the examples: an assistant, a desk, a chat, a pad, a board, games and a counter, kept in plait-demo.db."""
    for folder in (Path(__file__).parents[1], Path(__file__).parents[3]):
        if (folder / "examples" / "demo.py").is_file():
            break
    else:
        fail("the examples are not installed")
    service = Service(target="examples.demo:app", host=host, log_level=log_level, folder=str(folder))
    _serve(service, port, workers)


def _set_place(node: str, listen_nodes: str) -> None:
    """Tell the app, and the workers, which node of a cluster they are; fail if that is not possible."""
    os.environ |= {VARIABLES["cluster"]: "true", VARIABLES["node"]: node, VARIABLES["listen"]: listen_nodes}
    try:
        NodeConfig.from_environment()
    except ValueError as error:
        fail(str(error))


def _serve(service: Service, port: int, workers: int) -> None:
    """Serve in this process, or in several workers."""
    configure_logging(service.log_level, service.log_format)
    if workers == 1:
        service.run(port)
        return
    if sys.platform == "win32":
        fail("--workers must be 1 on Windows, whose processes cannot share a listening socket")
    try:
        check_target(service.target)
    except LoadError as error:
        give_up(error)
    with bind(service.host, port) as bound:
        line = service.describe(bound.getsockname()[1], workers=workers)
        # Without -P, modules of the working directory would replace those that plait imports.
        command = [sys.executable, "-P", "-m", "plait.cli.worker", msgspec.json.encode(service).decode()]
        parent = Parent(command, workers, bound, kills_silent=not service.in_development)
        code = asyncio.run(parent.run(partial(print, line, flush=True)))
    raise SystemExit(code)
