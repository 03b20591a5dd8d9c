"""The place of this process in a cluster, which `plait serve --cluster` sets in its environment."""

import os
import re
import ssl
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Self

import msgspec

from plait.cluster.member import SINGLE

__all__ = ["VARIABLES", "NodeConfig", "NodeTls", "join_address", "split_address"]

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_TLS: Final = ("certificate", "key", "authority")

VARIABLES: Final = {
    "cluster": "PLAIT_CLUSTER",
    "node": "PLAIT_NODE",
    "listen": "PLAIT_LISTEN_NODES",
    "address": "PLAIT_NODE_ADDRESS",
    "secret": "PLAIT_CLUSTER_SECRET",
    "certificate": "PLAIT_CLUSTER_CERTIFICATE",
    "key": "PLAIT_CLUSTER_KEY",
    "authority": "PLAIT_CLUSTER_CA",
}
"""The environment variables of a configuration, by their meaning."""


class NodeTls(msgspec.Struct, frozen=True):
    """The PEM files of a node: its certificate and key, and the authority that signs the certificates of all nodes."""

    certificate: str
    key: str
    authority: str

    def make_context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """Return the context for one end of a link. Raises OSError."""
        context = ssl.create_default_context(purpose, cafile=self.authority)
        context.load_cert_chain(self.certificate, self.key)
        # The authority signs only for nodes, and their addresses may change.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        return context


class NodeConfig(msgspec.Struct, frozen=True):
    """A node: its name, the address at which it listens, the address that others dial, and the proof of identity."""

    name: str
    host: str
    port: int
    # The address that the others dial: host and port.
    address: str
    secret: str = ""
    tls: NodeTls | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """Return the place of this process; None outside of a cluster. Raises ValueError."""
        if environment.get(VARIABLES["cluster"], "").lower() in ("", "0", "false", "no"):
            return None
        found = {what: environment.get(variable, "") for what, variable in VARIABLES.items()}
        name, listen = found["node"], found["listen"]
        if not _NAME.fullmatch(name) or name == SINGLE:
            raise ValueError(
                f"a cluster needs a name for each node: --node or {VARIABLES['node']} with at most 32 of a-z, 0-9 and "
                f"-, not {name!r}"
            )
        if not listen:
            raise ValueError(
                f"a cluster needs the address at which this node listens for the others: --listen-nodes or "
                f"{VARIABLES['listen']}, such as 10.0.0.1:7946"
            )
        host, port = split_address(listen, VARIABLES["listen"])
        address = found["address"] or listen
        if split_address(address, VARIABLES["address"])[0] in ("0.0.0.0", "::"):
            raise ValueError(f"other nodes cannot dial {listen}: set another address with {VARIABLES['address']}")
        config = cls(name, host, port, address, found["secret"], _read_tls(found))
        if not config.secret and config.tls is None and not _is_loopback(host):
            raise ValueError(
                f"nodes that listen on {host} must prove who they are: set {VARIABLES['secret']} to the same secret on "
                f"all of them, or {', '.join(VARIABLES[each] for each in _TLS)}"
            )
        return config

    def for_worker(self, number: int) -> "NodeConfig":
        """Return the place of a worker of this node."""
        host, port = split_address(self.address, VARIABLES["address"])
        address = join_address(host, port + number)
        return msgspec.structs.replace(self, name=f"{self.name}.{number}", port=self.port + number, address=address)


def split_address(text: str, variable: str) -> tuple[str, int]:
    """Return the host and the port of an address. Raises ValueError, which names the variable."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{variable} must be a host and a port, such as 10.0.0.1:7946, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """Return a host and a port in the form of URLs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _read_tls(found: Mapping[str, str]) -> NodeTls | None:
    given = [found[each] for each in _TLS]
    if not any(given):
        return None
    if not all(given):
        raise ValueError(f"TLS between nodes needs all of {', '.join(VARIABLES[each] for each in _TLS)}")
    for file in given:
        if not Path(file).is_file():
            raise ValueError(f"there is no file {file}")
    tls = NodeTls(*given)
    try:
        tls.make_context(ssl.Purpose.CLIENT_AUTH)
    except OSError as error:
        raise ValueError(f"{', '.join(given)} are not a certificate, key and authority for TLS: {error}") from error
    return tls


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
