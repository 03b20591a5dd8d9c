"""What carries the frames: TLS, and what goes wrong around it."""

import ssl
import subprocess
from pathlib import Path

import pytest
from tests.client.serving import serve

from plait_client import Disconnected, connect


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
