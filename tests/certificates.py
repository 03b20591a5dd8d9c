"""Certificates for servers of tests."""

import subprocess
from pathlib import Path

__all__ = ["make_certificate"]


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Return the files of a certificate for localhost that signs itself, and of its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key
