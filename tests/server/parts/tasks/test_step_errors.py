"""Errors whose text cannot be stored as it is end a run as others do."""

from tests.cases import each_case
from tests.server.parts.tasks.desk import Desk, run
from tests.server.parts.workshop import FlakyStore, open_workshop

from plait import Step


class Mute(Exception):
    """An error that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("this is faulty")


ERRORS = [
    (ValueError("half \ud83d"), "ValueError: half \\ud83d"),
    (ValueError("x" * 2_000_000), "ValueError: " + "x" * 3_988),
    (Mute(), "Mute: its message cannot be read: RuntimeError"),
    (ValueError("a\x00b"), "ValueError: a\x00b"),
]


@each_case(("error", "stored"), ERRORS)
@each_case("in_step", [False, True])
async def test_any_error_is_stored_and_ends_the_run(
    error: Exception, stored: str, in_step: bool, store: FlakyStore
) -> None:
    Desk.clear()

    def fail() -> None:
        Desk.seen.append("failed")
        raise error

    async def do(desk: Desk, step: Step) -> None:
        if in_step:
            await step.do("fail", fail, attempts=1)
        fail()

    async with open_workshop(store, Desk) as shop:
        ended = await run(shop, do)
    assert (ended.status, ended.error) == ("failed", f"StepFailed: {stored}"[:4_000] if in_step else stored)
    assert Desk.seen == ["failed"]
