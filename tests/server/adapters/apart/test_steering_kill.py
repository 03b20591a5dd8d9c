"""What people say while an agent of these frameworks answers is there once, and in order, over kills."""

from pathlib import Path

import pytest
from tests.integration.steering_talks import talk_over_kills
from tests.schedules import in_soak

APP = Path(__file__).parent / "killed_elsewhere.py"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kills", [3, *in_soak([10])])
async def test_what_is_said_meanwhile_is_in_the_conversation_once_and_in_order(tmp_path: Path, kills: int) -> None:
    await talk_over_kills(tmp_path, APP, ("session", "scope"), kills)
