"""Faults by seed, under load: nothing that was acknowledged is lost, and nothing old is shown."""

from pathlib import Path

import pytest
from tests.cluster.faults import FAULTS, play
from tests.cluster.nodes import open_cluster
from tests.postgres import Postgres
from tests.schedules import TIMES, schedules


@pytest.mark.soak
@pytest.mark.timeout(900 * TIMES)
async def test_faults_lose_nothing_acknowledged_and_show_nothing_old(postgres: Postgres, tmp_path: Path) -> None:
    async with open_cluster(postgres, tmp_path) as cluster:
        await play(cluster, FAULTS, schedules(len(FAULTS)))
