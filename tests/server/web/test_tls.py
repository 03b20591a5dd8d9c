"""TLS handshakes that are not finished, by bare sockets to a server in a process of its own."""

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.integration.socket_client import TIMEOUT, bare_socket
from tests.running import Process

Serve = Callable[..., Process]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """Return what serves with a certificate of its own, and with more in the environment."""
    make = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    subject = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *make.split(), *subject], cwd=tmp_path, check=True, capture_output=True)
    paths = {"PLAIT_TLS_CERTIFICATE": "cert.pem", "PLAIT_TLS_KEY": "key.pem"}

    def serve(**environment: str) -> Process:
        return Process("tests.integration.apps:app", cwd=tmp_path, environment=paths | environment)

    return serve


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00"], ids=["no byte", "half a hello"])
async def test_a_handshake_that_is_not_finished_in_time_is_given_up(serve: Serve, sent: bytes) -> None:
    with serve(PLAIT_REQUEST_TIMEOUT="0.3") as server:
        with bare_socket(server.address) as bare:
            await asyncio.get_running_loop().sock_sendall(bare, sent)
            await _read_to_end(bare)
        await _is_served(server)


async def test_handshakes_count_for_their_address_until_they_have_failed(serve: Serve) -> None:
    with (
        serve(PLAIT_LIMITS_CONNECTIONS_PER_ADDRESS="2") as server,
        bare_socket(server.address) as first,
        bare_socket(server.address),
        bare_socket(server.address) as third,
    ):
        await _read_to_end(third)
        await asyncio.get_running_loop().sock_sendall(first, b"GET / HTTP/1.1\r\n\r\n")
        await _read_to_end(first)
        await _is_served(server)


async def test_a_server_ends_with_handshakes_under_way(serve: Serve) -> None:
    with serve(PLAIT_LIMITS_CONNECTIONS_PER_ADDRESS="1") as server, bare_socket(server.address) as bare:
        with bare_socket(server.address) as other:
            await _read_to_end(other)
        assert server.end() == 0
        await _read_to_end(bare)
        assert "Traceback" not in server.log.read_text()


async def _is_served(server: Process) -> None:
    trust = ssl.create_default_context(cafile=server.log.parent / "cert.pem")
    async with httpx.AsyncClient(verify=trust, trust_env=False, timeout=TIMEOUT) as web:
        assert (await web.get(f"https://{server.address}/healthz")).json() == {"status": "ok"}


async def _read_to_end(bare: socket.socket) -> None:
    """Wait until the server closes a connection; it may send an alert before."""
    async with asyncio.timeout(TIMEOUT):
        try:
            while await asyncio.get_running_loop().sock_recv(bare, 4096):
                pass
        except ConnectionError:
            pass
