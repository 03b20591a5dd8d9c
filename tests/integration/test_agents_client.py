"""The published client, AgentClient: connections, states, calls and messages."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.cases import each_case
from tests.integration.agents_client.app import KINDS, Calls
from tests.integration.agents_client.playing import Agents, play
from tests.running import running

from plait import Context, MemoryStore, Plait, Principal, ThreadKey

pytest_plugins = ["tests.integration.agents_client.fixtures"]

log = logging.getLogger(__name__)

MCP_SERVERS = {
    "type": "cf_agent_mcp_servers",
    "mcp": {"servers": {}, "tools": [], "prompts": [], "resources": []},
}


# Connections


@pytest.mark.relayed
async def test_ready_resolves_when_identity_and_state_have_come(agents: Agents) -> None:
    result = await agents.play("connecting", "ready")
    frames = result.pop("frames")
    assert result == {
        "name": "one",
        "agent": "room",
        "identified": True,
        "state": {"n": 0},
        "identities": [{"name": "one", "agent": "room"}],
    }
    assert frames == [
        {"type": "cf_agent_identity", "name": "one", "agent": "room", "stateFollows": True},
        {"type": "cf_agent_state", "state": {"n": 0}},
        MCP_SERVERS,
    ]


async def test_a_thread_without_initial_state_sends_no_state(agents: Agents) -> None:
    result = await agents.play("connecting", "ready", agent="anything")
    assert "state" not in result
    assert result["frames"] == [{"type": "cf_agent_identity", "name": "one", "agent": "anything"}, MCP_SERVERS]


async def test_the_name_in_the_identity_is_the_one_that_the_client_gave(agents: Agents) -> None:
    names = ["plain", "with some spaces", "Grüße", "世界 🎉", "a+b&c=d", "50%", "dots.and~more", "UPPER", "é"]
    result = await agents.play("connecting", "names", names=names)
    assert result == {"before": names, "after": names}


@pytest.mark.relayed
async def test_an_encoded_name_is_decoded_and_stays_so_over_a_reconnect(agents: Agents) -> None:
    names = ["a%2Fb", "c%3Fd%23e", "with%20space"]
    result = await agents.play("connecting", "names", names=names)
    assert result == {"before": ["a/b", "c?d#e", "with space"], "after": ["a/b", "c?d#e", "with space"]}


async def test_the_kind_is_what_the_client_makes_of_the_class_name(agents: Agents) -> None:
    classes = ["MyAIAgent", "TAG_AGENT", "ABC", "Chat_Room", "my-a-i-agent"]
    result = await agents.play("connecting", "classes", agents=classes)
    assert result == [["my-a-i-agent"], ["tag-agent"], ["abc"], ["chat--room"], ["my-a-i-agent"]]


@pytest.mark.parametrize(
    "options",
    [
        {"basePath": "threads/room/one"},
        {"basePath": "agents/room/one"},
        {"basePath": "/agents/room/one"},
        {"path": "more/of/it"},
    ],
    ids=["threads", "agents", "slash", "longer"],
)
async def test_other_paths_to_a_thread_reach_the_same_one(agents: Agents, options: dict[str, str]) -> None:
    result = await agents.play("connecting", "paths", options=options)
    assert result == {"state": {"by": "other"}, "name": "one", "agent": "room", "identified": True}


async def test_agent_fetch_gets_the_state(agents: Agents) -> None:
    assert await agents.play("connecting", "fetched") == {"status": 200, "state": {"n": 5}}


@pytest.mark.parametrize(
    ("options", "code"),
    [({"agent": "unknown"}, 4404), ({"name": "x" * 257}, 4404), ({"basePath": "threads/room"}, 4404)],
    ids=["kind", "name", "path"],
)
async def test_what_is_not_there_is_refused_for_good(agents: Agents, options: dict[str, str], code: int) -> None:
    assert_refused(await agents.play("connecting", "refused", **options), code)


@pytest.mark.parametrize(("query", "code"), [({}, 4401), ({"user": "eve"}, 4403)], ids=["anonymous", "forbidden"])
async def test_who_may_not_come_in_is_refused_for_good(agents_package: Path, query: dict[str, str], code: int) -> None:
    def authenticate(request: Request) -> Principal | None:
        user = request.query_params.get("user")
        return Principal(user) if user else None

    def authorize(principal: Principal | None, thread: ThreadKey, action: str) -> bool:
        return principal is not None and principal.id != "eve"

    app = Plait(*KINDS, store="memory://", authenticate=authenticate, authorize=authorize)
    async with running(app) as address:
        assert_refused(await play(address, "connecting", "refused", query=query), code)


@pytest.mark.parametrize(("status", "code"), [(401, 4401), (403, 4403), (404, 4404), (302, 4401), (402, 4403)])
async def test_whom_authenticate_answers_by_itself_is_refused_for_good(
    agents_package: Path, status: int, code: int
) -> None:
    app = Plait(*KINDS, store="memory://", authenticate=lambda request: Response("not you", status))
    async with running(app) as address:
        assert_refused(await play(address, "connecting", "refused"), code)


def assert_refused(result: Any, code: int) -> None:
    (final,) = result.pop("finals")
    assert final["code"] == code
    assert final["reason"]
    assert result == {"frames": [], "reconnects": False, "sockets": 1, "call": "Connection closed"}


async def test_a_connection_whose_on_connect_raises_is_closed_with_1011_and_told_nothing(agents: Agents) -> None:
    result = await agents.play("connecting", "broken")
    assert [close["code"] for close in result["closes"]] == [1011]
    assert [frame["type"] for frame in result["frames"]] == ["cf_agent_identity", "cf_agent_mcp_servers"]
    told = str(result)
    assert "secret" not in told
    assert "RuntimeError" not in told
    assert "Traceback" not in told
    assert ".py" not in told


async def test_a_client_comes_back_after_on_connect_raised(agents: Agents) -> None:
    assert await agents.play("connecting", "broken_once") == {"closed": 1011, "given_up": []}


async def test_no_message_is_handled_before_on_connect_has_finished(agents: Agents) -> None:
    result = await agents.play("connecting", "early")
    (connected, _), text = result["log"]
    assert (connected, text) == ("connect", ["text", "hello"])
    assert result["types"] == ["cf_agent_identity", "cf_agent_mcp_servers", "welcome", "rpc"]


async def test_two_sockets_with_one_id_both_work(agents: Agents) -> None:
    result = await agents.play("connecting", "same_id")
    id, other = result.pop("ids")
    assert id == other
    assert result == {"state": {"by": "server"}, "stored": {"by": "server"}}


# States


@pytest.mark.relayed
async def test_a_state_set_by_an_rpc_reaches_all_and_the_caller_before_its_result(agents: Agents) -> None:
    result = await agents.play("states", "from_server")
    assert result == {"result": 3, "atResult": {"n": 3}, "types": ["cf_agent_state", "rpc"], "other": {"n": 3}}


@pytest.mark.relayed
async def test_a_state_set_by_a_client_reaches_the_others_and_not_its_sender(agents: Agents) -> None:
    state = {"n": 1, "text": "Grüße, 世界 🎉"}
    result = await agents.play("states", "from_client")
    assert result["sender"] == [{"state": state, "source": "client"}]
    assert set(result["types"]) == {"rpc"}
    assert result["other"] == [state]
    assert result["stored"] == state


async def test_any_json_value_is_a_state(agents: Agents) -> None:
    values = [None, 0, False, "", [], {}, [1, [2, None]], [True, [2, None]], "text", 1.5, 1, True, {"": {"a/b~c": 0}}]
    result = await agents.play("states", "each", values=values)
    assert len(result) == len(values)
    for value, kept in zip(values, result, strict=True):
        # The client's write, then another state, then the same one again from the server.
        assert kept == {"got": [value, "something else", value], "late": [value], "stored": value}
        assert type(kept["stored"]) is type(value)


@pytest.mark.relayed
async def test_a_state_written_before_the_socket_is_open_reaches_everybody(agents: Agents) -> None:
    state = {"by": "the one that was early"}
    assert await agents.play("states", "before_open") == {"sender": state, "other": state, "stored": state}


@pytest.mark.relayed
async def test_a_state_that_is_stored_in_another_form_is_sent_back(agents: Agents) -> None:
    state = {"points": 4}
    assert await agents.play("states", "normal_form") == {"sender": state, "other": state, "stored": state}


@pytest.mark.relayed
@pytest.mark.parametrize("count", [100, 1_000])
async def test_a_burst_of_states_ends_with_the_last_one_and_closes_no_socket(agents: Agents, count: int) -> None:
    result = await agents.play("states", "burst", count=count)
    assert result == [{"state": {"n": count}, "closes": []}] * 2


@pytest.mark.relayed
async def test_fast_typing_brings_no_state_back(agents: Agents) -> None:
    last = {"text": "x" * 50}
    result = await agents.play("states", "typing", count=50)
    assert result == {"back": [], "sender": last, "other": last, "seen": 50}


@pytest.mark.relayed
async def test_clients_that_write_at_the_same_moment_never_end_different_from_the_server(agents: Agents) -> None:
    result = await agents.play("states", "race", rounds=200)
    assert result["wrong"] == []
    # In most rounds both were sent a state: the one the other's, and the other the one that won.
    assert result["mended"] > 100


async def test_clients_that_write_different_fields_at_the_same_moment_keep_both(agents: Agents) -> None:
    assert await agents.play("states", "crossing", rounds=200) == {"wrong": [], "errors": []}


async def test_clients_that_write_different_fields_without_a_pause_keep_all(agents: Agents) -> None:
    assert await agents.play("states", "crossing_bursts", bursts=10, writes=20) == []


async def test_the_first_writes_of_readers_in_a_crowd_double_nothing(agents: Agents) -> None:
    result = await agents.play("states", "first_writes", readers=40, every=100)
    log.warning("%(wanted)d elements, %(lost)d of them lost", result)
    assert result["doubled"] == 0
    # A state to a crowd of readers has not always a ping, and may be lost if the first write crosses it.
    assert result["lost"] <= 5


@pytest.mark.relayed
async def test_a_crowd_that_writes_and_calls_at_once_ends_with_one_state(agents: Agents) -> None:
    assert await agents.play("states", "crowd", clients=5, bursts=10, writes=10) == []


# Calls


async def test_a_call_returns_its_result(agents: Agents) -> None:
    values: list[Any] = [{"a": [1, None, "ü"]}, [], 0, False, "", None]
    calls: list[tuple[str, list[Any], Any]] = [
        *(("echo", [value], value) for value in values),
        ("null", [], None),
        ("double", [21], 42),
        ("addPlayer", ["Ada"], ["Ada", 1]),
        ("addPlayer", ["Ada", 2], ["Ada", 2]),
    ]
    outcomes = await agents.play("rpcs", "calls", calls=[call[:2] for call in calls])
    for (_, _, result), outcome in zip(calls, outcomes, strict=True):
        frame = {"type": "rpc", "success": True, "result": result, "done": True}
        assert outcome == {"result": result, "frame": frame}


async def test_a_method_that_returns_nothing_is_answered_without_a_result(agents: Agents) -> None:
    (outcome,) = await agents.play("rpcs", "calls", calls=[("nothing", [])])
    assert outcome["frame"] == {"type": "rpc", "success": True, "done": True}


async def test_a_call_that_fails_says_why(agents: Agents) -> None:
    calls: list[tuple[str, list[Any], str]] = [
        ("missing", [], "Method missing does not exist"),
        ("add_player", ["Ada"], "Method add_player is not callable"),
        ("hidden", [], "Method hidden is not callable"),
        ("set_state", [{"n": 1}], "Method set_state is not callable"),
        ("_gates", [], "Method _gates does not exist"),
        ("__init__", [], "Method __init__ does not exist"),
        ("", [], "Method  does not exist"),
        ("fail", ["as it was said"], "as it was said"),
        ("fail", ["ünïcode\nand 'quotes\""], "ünïcode\nand 'quotes\""),
    ]
    outcomes = await agents.play("rpcs", "calls", calls=[call[:2] for call in calls])
    for (_, _, error), outcome in zip(calls, outcomes, strict=True):
        assert outcome == {"error": error, "frame": {"type": "rpc", "success": False, "error": error}}


async def test_a_call_with_bad_arguments_or_result_fails(agents: Agents) -> None:
    calls: list[tuple[str, list[Any], str]] = [
        ("double", ["two"], "number"),
        ("double", [], "'number' is missing"),
        ("double", [1, 2], "takes 1 arguments, 2 were given"),
        ("no_json", [], "not JSON"),
    ]
    outcomes = await agents.play("rpcs", "calls", calls=[call[:2] for call in calls])
    for (_, _, part), outcome in zip(calls, outcomes, strict=True):
        assert part in outcome["error"]


async def test_a_stub_calls(agents: Agents) -> None:
    assert await agents.play("rpcs", "stub") == ["by stub", ["Ada", 1], "Method missing does not exist"]


async def test_a_call_made_before_the_socket_is_open_is_answered(agents: Agents) -> None:
    assert await agents.play("rpcs", "before_open") == "early"


@pytest.mark.relayed
async def test_many_calls_at_once_get_each_its_own_result(agents: Agents) -> None:
    assert await agents.play("rpcs", "many", count=300) == list(range(300))


async def test_calls_may_finish_in_another_order_than_they_were_made(agents: Agents) -> None:
    assert await agents.play("rpcs", "out_of_order") == ["third", "first", "second"]


@each_case("legacy", [False, True])
@each_case(
    ("method", "args", "chunks", "value"),
    [
        ("count", [3], [0, 1, 2], None),
        ("count", [0], [], None),
        ("count_by_hand", [2], [0, 1], "all"),
        ("count_by_hand_first", [2], [0, 1], "all"),
        ("leave_open", [], ["only"], None),
        ("fail_after_end", [], [], "all"),
    ],
)
async def test_a_stream_brings_its_chunks_and_ends_once(
    agents: Agents, *, legacy: bool, method: str, args: list[Any], chunks: list[Any], value: str | None
) -> None:
    result = await agents.play("rpcs", "stream", method=method, args=args, legacy=legacy)
    assert result["told"] == [*(["chunk", chunk] for chunk in chunks), ["done", value or "nothing"]]
    assert result["outcome"] == ({} if value is None else {"resolved": value})
    assert result["done"] == [*(False for _ in chunks), True, True]


@pytest.mark.parametrize(
    ("method", "args", "chunks", "error"),
    [
        ("count_and_fail", [2], [0, 1], "no further"),
        ("send_and_fail", [], ["one"], "fell over"),
        ("give_up", [], ["one"], "given up"),
        ("fail_after_error", [], [], "told already"),
    ],
)
async def test_a_stream_that_fails_brings_its_chunks_and_then_one_error(
    agents: Agents, method: str, args: list[Any], chunks: list[Any], error: str
) -> None:
    result = await agents.play("rpcs", "stream", method=method, args=args)
    assert result["told"] == [*(["chunk", chunk] for chunk in chunks), ["error", error]]
    assert result["outcome"] == error


@pytest.mark.relayed
async def test_chunks_and_states_of_a_stream_come_in_the_order_in_which_they_were_made(agents: Agents) -> None:
    result = await agents.play("rpcs", "stream_with_states", upto=4)
    # Setting the state that there is changes nothing, so that the first chunk has no state before it.
    assert result == [0, {"n": 1}, 1, {"n": 2}, 2, {"n": 3}, 3, "end"]


@pytest.mark.relayed
async def test_two_streams_of_one_connection_do_not_mix(agents: Agents) -> None:
    assert await agents.play("rpcs", "two_streams", upto=100) == [list(range(100))] * 2


# Agents of the app


async def test_an_agent_of_the_app_runs_by_a_call(agents_package: Path) -> None:
    app = Plait(Calls, store=MemoryStore(), secret="of the test")

    @app.agent("support", thread=Calls)
    async def support(ctx: Context, input: dict[str, str]) -> str:
        ctx.thread.set_state({"n": 1})
        return f"You asked: {input['message']}"

    @app.agent("count", thread=Calls)
    async def count(ctx: Context, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            yield number

    async with running(app) as address:
        calls = [("run:support", [{"message": "why?"}]), ("run:support", [1]), ("run:nothing", [])]
        answer, wrong, missing = await play(address, "rpcs", "calls", calls=calls)
        assert answer["result"] == "You asked: why?"
        assert wrong["error"] == "support: the input: Expected `object`, got `int`"
        assert "run:nothing" in missing["error"]
        streamed = await play(address, "rpcs", "stream", method="run:count", args=[3])
        assert streamed["told"] == [*(["chunk", number] for number in range(3)), ["done", "nothing"]]


# Messages


@pytest.mark.relayed
async def test_messages_that_are_not_the_protocols_reach_on_message_as_they_are(agents: Agents) -> None:
    texts = [
        "hello",
        "Grüße, 世界 🎉",
        "",
        "{not json",
        "null",
        "[]",
        '"text"',
        '{"type": "mine", "x": 1}',
        '{"type": "cf_agent_state"}',
        '{"type": "rpc"}',
        '{"type": "rpc", "id": 1, "method": "log", "args": []}',
        '{"type": "rpc", "id": "1", "method": "log", "args": {}}',
        '{"type": "rpc", "id": "1", "method": 5, "args": []}',
        '{"type": "cf_agent_identity", "name": "other"}',
        "  spaces \n and lines  ",
    ]
    result = await agents.play("messages", "received", texts=texts)
    assert result == {
        "log": [*(["text", text] for text in texts), ["bytes", "00ff80"], ["bytes", ""]],
        "opened": 1,
        "closes": [],
    }


@pytest.mark.relayed
async def test_a_broadcast_brings_json_text_and_bytes_to_everybody(agents: Agents) -> None:
    messages = [{"type": "shout", "text": "hé"}, "hé", {"binary": list("hé".encode())}]
    assert await agents.play("messages", "broadcast") == [messages, messages]
