"""The `/metrics` of several workers."""

import re
from pathlib import Path

import httpx
from tests.integration.socket_client import TIMEOUT
from tests.workers.group import Group
from tests.workers.test_kills import find_names, find_ports, opened_at_each


async def test_the_metrics_count_the_sockets_that_each_worker_relays(tmp_path: Path) -> None:
    (thread,) = find_names(0, 1, 1)
    with Group("tests.workers.apps:app", cwd=tmp_path, options=("--metrics",)) as group:
        async with opened_at_each(group, thread) as clients, httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as web:
            assert len(clients) == 2
            text = (await web.get(f"http://{group.address}/metrics")).text
            found = dict(re.findall(r'^plait_relayed_sockets\{worker="(\d)"\} (.*)$', text, re.MULTILINE))
            at_gateway = find_ports(group.processes()[0])
            assert found["1"] == "0.0"
            assert 1 <= float(found["0"]) <= len(at_gateway)
            for name in ("plait_links", "plait_link_bytes_sent_total", "plait_held"):
                assert f'{name}{{worker="0"}} ' in text
            # These are for nodes of a cluster.
            assert "plait_shards{" not in text
