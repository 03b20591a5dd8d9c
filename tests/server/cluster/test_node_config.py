"""The place of a node, as its environment says."""

from pathlib import Path

import pytest
from tests.cases import each_case

from plait.cluster.node_config import NodeConfig

NODE = {"PLAIT_CLUSTER": "1", "PLAIT_NODE": "a", "PLAIT_LISTEN_NODES": "127.0.0.1:7946"}


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    (bad := tmp_path / "bad.pem").write_text("no certificate")
    variables = dict.fromkeys(("PLAIT_CLUSTER_CERTIFICATE", "PLAIT_CLUSTER_KEY", "PLAIT_CLUSTER_CA"), str(bad))
    with pytest.raises(ValueError, match=r"bad\.pem are not a certificate, key and authority"):
        NodeConfig.from_environment({**NODE, **variables})


@each_case("host", ["10.0.0.1", "0.0.0.0", "nodes.example", "::", "[fd00::1]"])
def test_a_node_that_others_can_reach_needs_a_secret(host: str) -> None:
    variables = {**NODE, "PLAIT_LISTEN_NODES": f"{host}:7946", "PLAIT_NODE_ADDRESS": "a.example:7946"}
    with pytest.raises(ValueError, match="must prove who they are"):
        NodeConfig.from_environment(variables)
    place = NodeConfig.from_environment({**variables, "PLAIT_CLUSTER_SECRET": "secret"})
    assert place is not None
    assert place.address == "a.example:7946"


@each_case("host", ["127.0.0.1", "localhost", "[::1]"])
def test_on_loopback_it_needs_none(host: str) -> None:
    place = NodeConfig.from_environment({**NODE, "PLAIT_LISTEN_NODES": f"{host}:7946"})
    assert place is not None
    assert place.for_worker(2).address == f"{host}:7948"
