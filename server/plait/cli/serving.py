"""`plait serve`, `dev` and `demo`: serve an app on this machine."""

import asyncio
import errno
import logging
import os
import shlex
import signal
import ssl
import sys
from pathlib import Path
from socket import socket
from typing import Annotated, Any

from cyclopts import Parameter, validators

from plait.app import Plait
from plait.cli.loading import check_target, find_plaits, load
from plait.cli.options import LoadError, Target, fail, give_up
from plait.errors import PlaitError
from plait.limits import UNLIMITED
from plait.settings import SettingError, Settings
from plait.web.serve import LogLevel, configure_logging, listen, serve

__all__ = ["demo", "dev", "serve_command"]

Host = Annotated[str, Parameter(help="Address to listen on.", env_var="PLAIT_HOST")]
Port = Annotated[
    int,
    Parameter(help="Port to listen on.", env_var="PLAIT_PORT", validator=validators.Number(gte=0, lte=65535)),
]
Level = Annotated[LogLevel, Parameter(help="The lowest level that is logged.", env_var="PLAIT_LOG_LEVEL")]


def serve_command(
    target: Target,
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    workers: Annotated[int, Parameter(help="Must be 1, as a store has one writer.", env_var="PLAIT_WORKERS")] = 1,
    tls_certificate: Annotated[
        str | None, Parameter(help="PEM file of the certificate.", env_var="PLAIT_TLS_CERTIFICATE")
    ] = None,
    tls_key: Annotated[str | None, Parameter(help="PEM file of its key.", env_var="PLAIT_TLS_KEY")] = None,
    log_level: Level = "info",
    proxy_headers: Annotated[
        bool,
        Parameter(help="Use X-Forwarded-For and X-Forwarded-Proto of trusted proxies.", env_var="PLAIT_PROXY_HEADERS"),
    ] = False,
    trusted_proxies: Annotated[
        str, Parameter(help="Addresses of trusted proxies, comma-separated.", env_var="PLAIT_TRUSTED_PROXIES")
    ] = "127.0.0.1",
    metrics: Annotated[bool, Parameter(help="Serve metrics for Prometheus at /metrics.", negative="")] = False,
    development: Annotated[bool, Parameter(show=False, negative="")] = False,
) -> None:
    """Serve an app: a Plait, or an ASGI app in which one is mounted."""
    if workers != 1:
        fail("--workers must be 1, as a store has one writer; to use more, run several servers with a store each")
    _check_tls(tls_certificate, tls_key)
    configure_logging(log_level)
    if metrics:
        os.environ["PLAIT_METRICS"] = "true"
    app, plaits, settings = _load_app(target, host, in_development=development)
    bound = _listen(host, port)
    scheme = "http" if tls_certificate is None else "https"
    line = f"plait serves {target} at {scheme}://{_authority(host, bound.getsockname()[1])} (press Ctrl+C to stop)"
    is_started = serve(
        app,
        bound,
        started=lambda: print(line, flush=True),
        ending=lambda: _drain(plaits),
        log_level=log_level,
        shutdown_timeout=settings.shutdown_timeout,
        request_timeout=settings.request_timeout,
        limits=settings.limits or UNLIMITED,
        addresses=plaits[0].addresses if plaits else None,
        certificate=tls_certificate,
        key=tls_key,
        proxy_headers=proxy_headers,
        trusted_proxies=trusted_proxies,
    )
    if not is_started:
        raise SystemExit(3)


def dev(target: Target, *, host: Host = "127.0.0.1", port: Port = 8000, log_level: Level = "debug") -> None:
    """Serve an app, and restart when a Python file in this folder changes."""
    try:
        from watchfiles import PythonFilter, run_process  # noqa: PLC0415
    except ImportError:
        fail("`plait dev` needs watchfiles: pip install watchfiles")
    try:
        check_target(target)
    except LoadError as error:
        give_up(error)
    # Shells make background processes ignore SIGINT, and `plait serve` would inherit that from watchfiles.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # watchfiles logs the exception that stops it as a warning.
    logging.getLogger("watchfiles.main").addFilter(lambda record: "KeyboardInterrupt" not in str(record.msg))
    command = [sys.executable, "-m", "plait.cli", "serve", target, "--development"]
    command += ["--host", host, "--port", str(port), "--log-level", log_level]
    run_process(".", target=shlex.join(command), target_type="command", watch_filter=PythonFilter())


def demo(*, host: Host = "127.0.0.1", port: Port = 8000, log_level: Level = "info") -> None:
    """Serve the examples: an assistant, a chat, a pad, a board, a game and a counter, stored in plait-demo.db."""
    for folder in (Path(__file__).parents[1], Path(__file__).parents[3]):
        if (folder / "examples" / "demo.py").is_file():
            sys.path.insert(0, str(folder))
            break
    else:
        fail("the examples are not installed")
    serve_command("examples.demo:app", host=host, port=port, log_level=log_level)


def _check_tls(certificate: str | None, key: str | None) -> None:
    for file in (certificate, key):
        if file is not None and not Path(file).is_file():
            fail(f"there is no file {file}")
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        fail("TLS needs both --tls-certificate and --tls-key")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        fail(f"cannot read {certificate} and {key} as a certificate and its key (PEM): {error.strerror or error}")


def _load_app(target: str, host: str, *, in_development: bool) -> tuple[Any, list[Plait], Settings]:
    """Return an app, the Plaits in it after checking and preparing them, and the settings of the server."""
    try:
        app = load(target)
        plaits = find_plaits(app)
        for each in plaits:
            each.prepare_serving(host, in_development=in_development)
            each.check_secret()
            asyncio.run(each.check_store())
        return app, plaits, plaits[0].settings if plaits else Settings().with_environment()
    except (LoadError, PlaitError) as error:
        give_up(error)
    except SettingError as error:
        fail(str(error))


def _listen(host: str, port: int) -> socket:
    try:
        return listen(host, port)
    except (OSError, UnicodeError) as error:
        fail(_explain_listen_error(host, port, error))


def _explain_listen_error(host: str, port: int, error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return f"{host!r} is not a host; pass an address of this machine with --host, such as 127.0.0.1 or 0.0.0.0"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use; stop the program that uses it, or choose another port with --port"
    if error.errno == errno.EACCES:
        return f"no permission to listen on port {port}; choose one above 1023 with --port"
    remedy = "pass an address of this machine with --host, such as 127.0.0.1 or 0.0.0.0"
    return f"cannot listen on {_authority(host, port)}: {error.strerror or error}; {remedy}"


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _drain(plaits: list[Plait]) -> asyncio.Future[list[None]]:
    return asyncio.gather(*(each.drain() for each in plaits))
