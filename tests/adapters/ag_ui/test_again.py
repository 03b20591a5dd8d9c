"""Requests that run an agent and are sent again."""

from typing import Any

import pytest
from starlette.requests import Request
from tests.adapters.ag_ui.lab import Conversation
from tests.adapters.ag_ui.streams import Served, begun, body, serving
from tests.integration.test_http import error_of

from plait import Limits, Principal

pytestmark = pytest.mark.relayed


async def test_a_request_that_is_sent_again_watches_its_run(served: Served) -> None:
    again = {"runId": "again", "text": "a b"}
    async with begun(served.web, "writer/one", **again) as first:
        await first.until("STATE_SNAPSHOT")
        served.gate.open()
        await first.until("TEXT_MESSAGE_CONTENT")
        async with begun(served.web, "writer/one", **again) as second:
            await second.until("TEXT_MESSAGE_CONTENT")
            served.gate.open()
            await second.rest()
        await first.rest()
    async with begun(served.web, "writer/one", **again) as third:
        await third.rest()
    told = [
        [(each["type"], each.get("delta")) for each in stream.events if "STATE" not in each["type"]]
        for stream in (first, second, third)
    ]
    assert told[0] == told[1] == told[2]
    assert first.types[-1] == "RUN_FINISHED"


async def test_a_request_that_is_sent_again_while_it_waits_watches_its_run(served: Served) -> None:
    async with begun(served.web, "writer/one", text="a") as first:
        await first.until("STATE_SNAPSHOT")
        async with (
            begun(served.web, "quick/one", runId="again") as second,
            begun(served.web, "quick/one", runId="again") as third,
        ):
            served.gate.open()
            await first.rest()
            assert await second.rest() == await third.rest()


@pytest.mark.parametrize("other", [{"text": "other"}, {"state": {}}, {"agent": "adder"}])
async def test_the_same_run_id_with_another_body_is_a_conflict(served: Served, other: dict[str, Any]) -> None:
    other = dict(other)
    agent = other.pop("agent", "quick")
    async with begun(served.web, "quick/one", text="one", runId="again") as stream:
        await stream.rest()
    answer = await served.web.post(
        f"/ag-ui/{agent}/one", json={**body("one", runId="again"), **body(**{"text": "one", "runId": "again", **other})}
    )
    assert error_of(answer) == (409, "conflict")


async def test_the_same_run_id_of_another_user_is_a_conflict() -> None:
    def authenticate(request: Request) -> Principal:
        return Principal(request.headers["authorization"])

    async with serving(authenticate=authenticate) as served:
        codes = []
        for user in ("ada", "bob", "ada"):
            headers = {"authorization": user}
            answer = await served.web.post("/ag-ui/quick/one", json=body(runId="again"), headers=headers)
            codes.append(answer.status_code)
        assert codes == [200, 409, 200]


async def test_a_refused_request_may_be_sent_again(served: Served) -> None:
    async with begun(served.web, "busy/one", text="a") as first:
        await first.until("STATE_SNAPSHOT")
        async with begun(served.web, "busy/one", text="b", runId="again") as second:
            assert await second.rest() == ["RUN_ERROR"]
        served.gate.open()
        await first.rest()
    served.gate.open()
    async with begun(served.web, "busy/one", text="c", runId="again") as third:
        assert (await third.rest())[-1] == "RUN_FINISHED"


async def test_a_run_whose_events_are_gone_may_run_again() -> None:
    async with serving(limits=Limits(write_buffer=1_000)) as served:
        for text, id in (("one", "again"), ("x" * 2_000, "long"), ("two", "again")):
            served.gate.open()
            async with begun(served.web, "writer/one", text=text, runId=id) as stream:
                await stream.rest()
        assert (await served.app.thread(Conversation, "one").state()).answer.endswith("two")
