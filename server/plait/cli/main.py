"""The command line: `plait serve`, `dev`, `demo`, `migrate`, `types`, and the commands for store files."""

import asyncio
import errno
import logging
import os
import shlex
import signal
import ssl
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter, validators

from plait.actor.client_types import NoTypes
from plait.app import Plait
from plait.cli.loading import LoadError, check_target, find_plaits, load, load_plait
from plait.cli.maintenance import back_up_store, check_store, restore_store
from plait.cli.options import StoreFile, Target, fail, find_store, give_up, show_store
from plait.cli.threads import threads
from plait.errors import PlaitError, operator_message
from plait.limits import UNLIMITED
from plait.settings import SettingError, Settings
from plait.state.history import History
from plait.state.types import StateType
from plait.store.protocol import ThreadKey
from plait.store.sqlite import SqliteStore
from plait.web.serve import LogLevel, configure_logging, listen, serve
from plait_schemas.export import differing, write

__all__ = ["main"]

cli = App(name="plait", help="Live, durable, shared state: serve threads, and inspect their store.")

Host = Annotated[str, Parameter(help="Address to listen on.", env_var="PLAIT_HOST")]
Port = Annotated[
    int,
    Parameter(help="Port to listen on.", env_var="PLAIT_PORT", validator=validators.Number(gte=0, lte=65535)),
]
Level = Annotated[LogLevel, Parameter(help="The minimum level of log lines.", env_var="PLAIT_LOG_LEVEL")]


@cli.command(name="serve")
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
        bool, Parameter(help="Trust X-Forwarded-For and -Proto.", env_var="PLAIT_PROXY_HEADERS")
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
    try:
        app = load(target)
        plaits = find_plaits(app)
        for each in plaits:
            each.prepare_serving(host, in_development=development)
            each.check_secret()
            asyncio.run(each.check_store())
        settings = plaits[0].settings if plaits else Settings().with_environment()
    except (LoadError, PlaitError) as error:
        give_up(error)
    except SettingError as error:
        fail(str(error))
    try:
        bound = listen(host, port)
    except (OSError, UnicodeError) as error:
        fail(_explain_listen_error(host, port, error))
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


@cli.command
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
    # Shells make background processes ignore SIGINT, and watchfiles keeps that; `plait serve` must stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # watchfiles also warns of the exception by which it stops.
    logging.getLogger("watchfiles.main").addFilter(lambda record: "KeyboardInterrupt" not in str(record.msg))
    command = [sys.executable, "-m", "plait.cli", "serve", target, "--development"]
    command += ["--host", host, "--port", str(port), "--log-level", log_level]
    run_process(".", target=shlex.join(command), target_type="command", watch_filter=PythonFilter())


@cli.command
def demo(*, host: Host = "127.0.0.1", port: Port = 8000, log_level: Level = "info") -> None:
    """Serve the examples: an assistant, a pad, a board, a game and a counter, stored in plait-demo.db."""
    for folder in (Path(__file__).parents[1], Path(__file__).parents[3]):
        if (folder / "examples" / "demo.py").is_file():
            sys.path.insert(0, str(folder))
            break
    else:
        fail("the examples are not installed")
    serve_command("examples.demo:app", host=host, port=port, log_level=log_level)


cli.command(threads)


@cli.command
def state(thread: Annotated[str, Parameter(help="The thread, as kind/name.")], store: StoreFile = "plait.db") -> None:
    """Print the stored state of a thread as JSON."""
    kind, _, name = thread.partition("/")
    if not kind or not name:
        fail(f"{thread!r} is not a thread; use kind/name, such as game-room/room-1")
    key = ThreadKey(kind, name)

    async def show(file: SqliteStore) -> None:
        async with file as opened:
            stored = await opened.load(key)
        if stored is None:
            fail(f"{store} has no thread {key}; `plait threads {store}` lists them")
        data = History(key, StateType(Any), stored).durable.json
        print(msgspec.json.format(data or b"null", indent=2).decode())

    show_store(show, store)


@cli.command
def check(store: StoreFile = "plait.db") -> None:
    """Read all of a store and list what is damaged. A server may have the store open."""
    damaged = False
    try:
        for line, is_damage in check_store(find_store(store)):
            damaged = damaged or is_damage
            print(line)
    except PlaitError as error:
        fail(operator_message(error))
    if damaged:
        raise SystemExit(1)


@cli.command
def backup(store: StoreFile, to: Annotated[Path, Parameter(help="The file to create, which must not exist.")]) -> None:
    """Copy a store to one file. A server may have the store open."""
    try:
        print(back_up_store(find_store(store), to))
    except PlaitError as error:
        fail(operator_message(error))


@cli.command
def restore(backup: Annotated[Path, Parameter(help="A file made by `plait backup`.")], store: StoreFile) -> None:
    """Replace a store with a backup; the old file is kept. No server may have the store open."""
    try:
        print(restore_store(backup, find_store(store)))
    except PlaitError as error:
        fail(operator_message(error))


@cli.command
def migrate(
    target: Target,
    *,
    dry_run: Annotated[bool, Parameter(help="Change nothing, and report what would fail.", negative="")] = False,
) -> None:
    """Migrate every stored thread of an app to its class's state_version."""
    try:
        app = load_plait(target)
        failures = asyncio.run(_migrate(app, dry_run=dry_run))
    except (LoadError, PlaitError) as error:
        give_up(error)
    if failures:
        raise SystemExit(1)


async def _migrate(app: Plait, *, dry_run: bool) -> int:
    outcomes = {"current": 0, "migrated": 0, "failed": 0, "unknown": 0}
    async for _, outcome, error in app.migrate(dry_run=dry_run):
        outcomes[outcome] += 1
        if error is not None:
            print(f"plait: {operator_message(error)}", file=sys.stderr)
    line = f"{outcomes['current']} up to date, {outcomes['migrated']} {'to migrate' if dry_run else 'migrated'}"
    print(f"{line}, {outcomes['failed']} failed, {outcomes['unknown']} of kinds that the app does not have")
    return outcomes["failed"]


@cli.command
def types(
    target: Target,
    *,
    out: Annotated[Path, Parameter(help="The folder to write to.")],
    check: Annotated[bool, Parameter(help="Write nothing, and fail if a file differs.", negative="")] = False,
) -> None:
    """Write the types of an app's threads for clients: plait-types.ts and, as JSON Schema, plait-types.json."""
    try:
        app = load_plait(target)
        files = app.types()
        if not check:
            write(files, out)
        elif paths := differing(files, out):
            command = f"plait types {target} --out {out}"
            fail(f"out of date: {', '.join(map(str, paths))}; run `{command}`")
    except (LoadError, NoTypes) as error:
        give_up(error)
    except OSError as error:
        fail(f"cannot write to {out}: {error.strerror or error}")


def main() -> None:
    """Run the command line."""
    cli()


def _drain(plaits: list[Plait]) -> None:
    for each in plaits:
        each.drain()


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
