"""Families: children are created, and what one thread tells another is applied once and in order."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.parts.family_lab import FamilyLab, Kid, make_store, open_lab, until


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FamilyLab]:
    async with open_lab(make_store(request, request.param, tmp_path)) as lab:
        yield lab


async def test_a_spawned_child_knows_its_parent_and_is_found_by_its_reference(lab: FamilyLab) -> None:
    boss = await lab.boss()
    reference = await boss.kin.spawn(Kid, "k")
    assert reference == "kid/k"
    child = await boss.kin.child(reference)
    assert child is not None
    assert child.name == "k"
    kid = await lab.thread(Kid, "k")
    assert kid.family.parent is not None
    assert kid.family.parent.name == "b"
    assert boss.kin.parent is None


async def test_a_notice_is_a_silent_message_of_the_parent_and_leaves_no_item(lab: FamilyLab) -> None:
    kid = await lab.kid()
    await kid.family.notify_parent("halfway")

    async def has_come() -> bool:
        return await lab.notices() == ["halfway"]

    await until(has_come)
    await lab.wait_for_sent(Kid, "k")
    assert await lab.keys(Kid, "k") == ["head"]
    message = (await (await lab.boss()).messages.list(include_silent=True)).messages[0]
    assert (message.role, message.silent, message.subagent_id) == ("user", True, "kid/k")


async def test_notices_come_once_and_in_order(lab: FamilyLab) -> None:
    kid = await lab.kid()
    for number in range(250):
        kid.family.notify_parent(str(number))

    async def have_come() -> bool:
        return len(await lab.notices()) >= 250

    await until(have_come)
    await lab.wait_for_sent(Kid, "k")
    assert await lab.notices() == [str(number) for number in range(250)]
