"""The fuzzers find no fault in a few inputs, and find one that is there."""

from random import Random

import pytest
from fuzz.frames import FRAMES
from fuzz.json_text import JSON
from fuzz.running import Failed, Fuzzer, run

from plait.web.sockets.framing import FrameParser

PATIENCE = 60.0


@pytest.mark.parametrize("fuzzer", [FRAMES, JSON], ids=["frames", "json"])
def test_a_few_inputs_have_no_fault(fuzzer: Fuzzer) -> None:
    assert run(fuzzer, seconds=PATIENCE, seed=0, most=300) == 300


def test_a_parser_that_loses_a_frame_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = FrameParser.feed
    monkeypatch.setattr(FrameParser, "feed", lambda parser, data: feed(parser, data[:-1]))
    with pytest.raises(Failed, match=r"^seed \d+: b'"):
        run(FRAMES, seconds=PATIENCE, seed=0, most=300)


def test_what_fails_is_told_with_its_seed_and_its_input() -> None:
    def check(data: bytes, chance: Random) -> None:
        if data == b"7":
            raise LookupError("seven")

    fuzzer = Fuzzer(lambda chance: b"%d" % chance.randrange(10), check)
    with pytest.raises(Failed) as failed:
        run(fuzzer, seconds=PATIENCE, seed=0, most=1000)
    assert isinstance(failed.value.__cause__, LookupError)
    told = str(failed.value)
    assert told.endswith(": b'7' (1 bytes)")
    assert Random(int(told.split()[1].rstrip(":"))).randrange(10) == 7
