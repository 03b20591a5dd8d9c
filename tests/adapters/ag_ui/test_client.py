"""Agents by AG-UI, for its published client: runs, state, viewers, coming back, interrupts and errors."""

from typing import Any

import pytest
from tests.adapters.ag_ui.lab import Lab, Player, until_connected
from tests.told import check_internal

DELTAS = {"add", "remove", "replace"}


async def test_a_run_is_told_from_its_start_to_its_end(lab: Lab) -> None:
    async with lab.play("quick", text="Ulm") as player:
        done = await player.done()
    assert done["error"] is None
    assert player.types[:3] == ["RUN_STARTED", "STATE_SNAPSHOT", "TEXT_MESSAGE_START"]
    assert player.types[-1] == "RUN_FINISHED"
    assert player.events[0]["threadId"] == "t"
    assert done["texts"] == ["Looking it up", None, "It is mild in Ulm"]  # The second has the tool call.
    assert done["tools"] == ["18 degrees"]
    assert done["state"] == {"answer": "", "steps": ["looked up"], "note": ""}
    assert [each["value"] for each in player.find("CUSTOM")] == [{"source": "station 7"}]
    assert player.outcomes == ["success"]


async def test_the_state_comes_as_plain_json_patch_from_the_log(lab: Lab) -> None:
    async with lab.play("writer", text="a b c") as player:
        await player.until("STATE_SNAPSHOT")
        lab.gate.open()
        await player.until("STATE_DELTA")
        await lab.thread.set_state({"answer": "a!", "steps": ["x", "y"], "note": "n"})
        lab.gate.open(2)
        done = await player.done()
    assert done["state"] == {"answer": "a!bc", "steps": ["x", "y"], "note": "n"}
    ops = [op for each in player.find("STATE_DELTA") for op in each["delta"]]
    assert {op["op"] for op in ops} <= DELTAS
    assert {"op": "replace", "path": "/answer", "value": "a!b"} in ops
    versions = [int(each["metadata"]["stateVersion"].rpartition(":")[2]) for each in player.find("STATE_DELTA")]
    assert versions == list(range(versions[0], versions[0] + len(versions)))
    assert done["texts"] == ["abc"]


async def test_an_agent_that_does_not_stream_answers_with_its_result(lab: Lab) -> None:
    async with lab.play("adder", text="hello") as player:
        done = await player.done()
    assert (done["result"], done["texts"]) == ({"messages": 1}, [])


async def test_any_number_of_viewers_see_one_run_also_those_who_come_late(lab: Lab) -> None:
    async with lab.play("writer", text="a b c d") as player:
        await player.until("STATE_SNAPSHOT")
        lab.gate.open(2)
        for _ in range(2):
            await player.until("TEXT_MESSAGE_CONTENT")
        async with lab.play("writer", watches=True) as second, lab.play("quick", watches=True) as third:
            for viewer in (second, third):
                await viewer.until("RUN_STARTED")
                assert (await viewer.until("STATE_SNAPSHOT"))["snapshot"]["answer"] == "ab"
            lab.gate.open(2)
            ends = [await each.done() for each in (player, second, third)]
    assert [end["error"] for end in ends] == [None] * 3
    assert [end["texts"] for end in ends] == [["abcd"]] * 3
    assert [end["state"]["answer"] for end in ends] == ["abcd"] * 3
    assert player.events[0] == second.events[0] == third.events[0]


async def test_a_run_outlives_who_has_begun_it(lab: Lab) -> None:
    async with lab.play("writer", text="a b c", leavesAt="TEXT_MESSAGE_CONTENT") as player:
        await player.until("STATE_SNAPSHOT")
        lab.gate.open()
        await player.done()
    async with lab.play("writer", watches=True) as viewer:
        await viewer.until("STATE_SNAPSHOT")
        lab.gate.open(2)
        done = await viewer.done()
    assert (done["texts"], done["state"]["answer"]) == (["abc"], "abc")


async def test_who_comes_back_in_the_middle_gets_what_was_missed_and_nothing_twice(lab: Lab) -> None:
    async with lab.play("writer", text="a b c d", cutAfter=2) as player:
        await player.until("STATE_SNAPSHOT")
        lab.gate.open(2)
        await player.until("cut")
        async with lab.play("writer", watches=True) as viewer:
            await viewer.until("STATE_SNAPSHOT")
            lab.gate.open()
            while viewer.text != "abc":
                await viewer.line()
            player.go()
            await player.until("back")
            lab.gate.open()
            ends = [await player.done(), await viewer.done()]
    assert [(end["error"], end["texts"], end["state"]["answer"]) for end in ends] == [(None, ["abcd"], "abcd")] * 2
    assert player.types.count("RUN_STARTED") == 1
    assert [each["delta"] for each in player.find("TEXT_MESSAGE_CONTENT")] == ["a", "b", "c", "d"]


async def test_who_comes_back_after_the_end_gets_the_end(lab: Lab) -> None:
    async with lab.play("writer", text="a b c", cutAfter=1) as player:
        await player.until("STATE_SNAPSHOT")
        lab.gate.open()
        await player.until("cut")
        async with lab.play("writer", watches=True) as viewer:
            await viewer.until("STATE_SNAPSHOT")
            lab.gate.open(2)
            await viewer.done()
        player.go()
        done = await player.done()
    assert (done["error"], done["texts"], done["state"]["answer"]) == (None, ["abc"], "abc")
    assert player.outcomes == ["success"]


async def test_an_agent_that_asks_is_paused_and_goes_on_with_the_answer(lab: Lab) -> None:
    async with lab.play("buyer", text="buy it") as player:
        await player.done()
    assert player.outcomes == ["interrupt"]
    assert player.events[-1]["outcome"]["interrupts"] == [{"id": "i1", "reason": "approval", "message": "Buy it?"}]
    answer = {"interruptId": "i1", "status": "resolved", "payload": {"approved": True}}
    async with lab.play("buyer", resume=[answer]) as player:
        done = await player.done()
    assert (player.outcomes, done["texts"], done["result"]) == (["success"], ["bought: True"], "bought: True")


async def test_a_run_that_is_interrupted_is_cancelled_for_all_and_keeps_what_it_had(lab: Lab) -> None:
    async with lab.play("writer", text="a b c") as player:
        await player.until("STATE_SNAPSHOT")
        lab.gate.open()
        await player.until("TEXT_MESSAGE_CONTENT")
        async with lab.play("writer", watches=True) as viewer:
            await viewer.until("STATE_SNAPSHOT")
            assert await lab.app.interrupt(lab.thread, "enough")
            lab.gate.open()
            ends = [await player.done(), await viewer.done()]
    assert [player.outcomes, viewer.outcomes] == [["cancelled"]] * 2
    assert [end["error"] for end in ends] == [None] * 2
    assert player.types[-2:] == ["TEXT_MESSAGE_END", "RUN_FINISHED"]
    assert (await lab.thread.state()).answer.startswith("a")


async def test_an_error_ends_the_run_and_leaves_no_trace_of_the_server(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    async with lab.play("failing", text="x") as player:
        await player.done()
    last = player.events[-1]
    assert (last["type"], last["code"]) == ("RUN_ERROR", "call_failed")
    check_internal(last["message"], caplog, "the model is gone")
    assert player.text == "so far"


async def test_a_run_that_is_refused_says_why(lab: Lab) -> None:
    async with lab.play("busy", text="x") as player:
        await player.until("STATE_SNAPSHOT")
        async with lab.play("busy", text="y") as second:
            await second.done()
        assert [(each["type"], each["code"]) for each in second.events] == [("RUN_ERROR", "busy")]
        lab.gate.open()
        assert (await player.done())["texts"] == ["x"]


async def test_runs_wait_for_their_turn_and_each_client_sees_its_own(lab: Lab) -> None:
    async with lab.play("writer", text="a b") as player:
        await player.until("STATE_SNAPSHOT")
        async with lab.play("writer", text="c d") as second:
            await until_connected(lab.app, 2)
            lab.gate.open(4)
            ends = [await player.done(), await second.done()]
    assert [end["texts"] for end in ends] == [["ab"], ["cd"]]
    assert ends[1]["state"]["answer"] == "abcd"


# The state of clients


async def run_once(lab: Lab) -> tuple[dict[str, Any], str]:
    """Return the state and its version as a client has them."""
    async with lab.play("adder", text="x") as player:
        done = await player.done()
    return done["state"], player.find("STATE_SNAPSHOT")[-1]["metadata"]["stateVersion"]


async def push(lab: Lab, player_state: Any, version: str | None) -> tuple[Player, dict[str, Any]]:
    props = None if version is None else {"stateVersion": version}
    async with lab.play("adder", text="x", state=player_state, forwardedProps=props) as player:
        return player, await player.done()


async def test_the_state_of_a_client_is_a_push_on_the_version_that_it_had(lab: Lab) -> None:
    state, version = await run_once(lab)
    await lab.thread.set_state({**state, "steps": ["by another"]})
    _, done = await push(lab, {**state, "note": "mine"}, version)
    assert done["state"] == {"answer": "", "steps": ["by another"], "note": "mine"}
    assert (await lab.thread.state()).note == "mine"


async def test_a_state_without_a_version_changes_nothing(lab: Lab) -> None:
    state, _ = await run_once(lab)
    await lab.thread.set_state({**state, "note": "kept"})
    _, done = await push(lab, {**state, "note": "mine"}, None)
    assert done["state"]["note"] == "kept"
    assert (await lab.thread.state()).note == "kept"


async def test_a_state_that_is_refused_ends_the_run_and_the_client_has_that_of_the_server(lab: Lab) -> None:
    state, version = await run_once(lab)
    for wrong, its_version, code in (
        ({**state, "note": "bad"}, version, "rejected"),
        ({**state, "note": 7}, version, "invalid_state"),
        ({**state, "note": "x"}, "elsewhere:0", "conflict"),
        ({**state, "note": "x"}, "nonsense", "invalid_arguments"),
    ):
        player, done = await push(lab, wrong, its_version)
        assert player.types == ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_ERROR"]
        assert (player.events[-1]["code"], done["state"]) == (code, state)
