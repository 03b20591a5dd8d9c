"""The transport of frames: TLS, and its failures."""

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest
from tests.client.serving import TIMEOUT, Server, serve

from plait_client import ClientError, Disconnected, connect
from plait_schemas import messages


async def test_a_server_is_trusted_by_the_certificates_of_the_system_where_no_others_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    subject = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *make.split(), *subject], cwd=tmp_path, check=True, capture_output=True)  # noqa: ASYNC221
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with serve(tls=tls) as server:
        async with connect(server.url, ssl=ssl.create_default_context(cafile=tmp_path / "cert.pem")) as room:
            assert await room.update("/n", 2) == 1
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        async with connect(server.url) as room:
            assert await room.update("/n", 3) == 2
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(Disconnected, match="CERTIFICATE_VERIFY_FAILED"):
            await connect(server.url, open_timeout=1.0).__aenter__()


async def _cancelled() -> str:
    """Wait for a token that is shared with others and was cancelled by one of them."""
    token: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    token.cancel()
    return await token


async def test_a_first_token_that_was_cancelled_is_an_error(server: Server) -> None:
    with pytest.raises(ClientError, match="was cancelled"):
        async with asyncio.timeout(TIMEOUT), connect(server.url, token=_cancelled):
            pass


async def test_a_token_that_was_cancelled_is_fetched_again(server: Server) -> None:
    asked: list[int] = []

    async def fetch() -> str:
        asked.append(1)
        return await _cancelled() if len(asked) in (2, 3) else f"token {len(asked)}"

    async with asyncio.timeout(TIMEOUT), connect(server.url, token=fetch) as room:
        server.send_all(messages.AuthExpiring(30))
        await room.wait_for(lambda _: "was cancelled" in room.trouble)
        await server.close_all()
        await server.until(lambda: len(server.frames(messages.Join)) == 2)
        assert await room.update("/n", 2) == 1
    assert [join.token for join in server.frames(messages.Join)] == ["token 1", "token 4"]


async def test_leaving_does_not_wait_for_a_token(server: Server) -> None:
    asked: list[int] = []
    again = asyncio.Event()

    async def fetch() -> str:
        asked.append(1)
        if len(asked) > 1:
            again.set()
            await asyncio.Event().wait()
        return "token"

    async with asyncio.timeout(TIMEOUT), connect(server.url, token=fetch) as room:
        await server.close_all()
        await again.wait()
    assert room.status == "closed"
