"""Checks and opens the address of a server, and checks its TLS certificate."""

import errno
import ssl
from pathlib import Path
from socket import socket

from plait.cli.options import fail
from plait.cluster.node_config import join_address
from plait.web.serve import listen

__all__ = ["bind", "check_tls"]


def check_tls(certificate: str | None, key: str | None) -> None:
    """Check the files of a TLS certificate and its key; fail if they cannot be used."""
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


def bind(host: str, port: int) -> socket:
    """Return a listening socket; fail if the address cannot be used."""
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
    return f"cannot listen on {join_address(host, port)}: {error.strerror or error}; {remedy}"
