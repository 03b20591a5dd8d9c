"""Tasks as clients of a real server see and use them: in order with states and messages, by every door."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from tests.integration.socket_client import TIMEOUT, connected
from tests.integration.socket_client import CallError as CloudflareError
from tests.running import running

from plait import Connection, Messages, Plait, Principal, Step, Tasks, Thread, rpc, task
from plait_client import CallError, Refused, Room, TaskRun, connect, connect_sync

pytestmark = pytest.mark.relayed(in_soak=True)

SECRET = "the secret of an argument"


class Desk(Thread[dict[str, Any]]):
    """Has tasks that clients may begin, and one that they may not."""

    initial_state = {"shown": 0}  # noqa: RUF012
    messages = Messages(live=True)
    tasks = Tasks(live=True)

    def on_connect(self, connection: Connection, request: Request | None) -> None:
        connection.readonly = request is not None and "readonly" in request.url.query

    @task(clients=True)
    async def publish(self, step: Step, pages: int, secret: str = "") -> int:
        for page in range(1, pages + 1):
            await step.do(f"page {page}", lambda page=page: self.show(page))
            step.status({"page": page})
        if not (await step.approval("publish")).approved:
            return 0
        return pages

    def show(self, page: int) -> None:
        self.update("/shown", page)
        self.messages.inject("assistant", f"{page}")

    @task
    async def clean(self, step: Step, secret: str) -> str:
        step.status("cleaning")
        await step.event("go")
        return secret

    @task(clients=True)
    async def fail(self, step: Step) -> None:
        raise ValueError(SECRET)

    @rpc
    async def begin_cleaning(self) -> str:
        return self.tasks.run("clean", SECRET).id

    @rpc
    async def let_go(self, id: str) -> bool:
        return await self.tasks.send(id, "go")

    @rpc(concurrent=True)
    def cut(self) -> None:
        for connection in self.connections():
            connection.close(1012)


class Office(Thread[dict[str, Any]]):
    """Keeps its tasks from clients."""

    initial_state: Any = dict
    tasks = Tasks()

    @task(clients=True)
    async def file(self, step: Step) -> None:
        await step.event("go")


def make_app(folder: Path, *, may: Callable[[str, str], bool] | None = None) -> Plait:
    def authenticate(request: Any) -> Principal:
        return Principal(request.headers.get("authorization", "").removeprefix("Bearer ") or "ada")

    def authorize(principal: Principal | None, thread: Any, action: str) -> bool:
        assert may is not None
        assert principal is not None
        return may(principal.id, action)

    checks: dict[str, Any] = {} if may is None else {"authenticate": authenticate, "authorize": authorize}
    return Plait(Desk, Office, store=f"sqlite:///{folder}/plait.db", **checks)


def may_all_but(principal: str, action: str) -> bool:
    return action not in principal.split("-")


async def until(room: Room[Any], id: str, is_so: Callable[[TaskRun], object]) -> TaskRun:
    """Wait until a run is shown as it must be."""
    async for runs in room.tasks:
        for run in runs:
            if run.id == id and is_so(run):
                return run
    raise AssertionError("the room was closed")


async def test_a_client_begins_a_run_follows_it_and_approves_it(tmp_path: Path) -> None:
    async with running(make_app(tmp_path, may=may_all_but)) as address, asyncio.timeout(TIMEOUT):
        url = f"ws://{address}/threads/desk/one"
        async with connect(url, token="ada") as ada, connect(url, token="bob") as bob:
            id = await ada.tasks.run("publish", 2)
            await until(bob, id, lambda run: run.value == {"page": 2})
            assert await bob.tasks.approve(id, "publish", reason="fine", metadata={"by": "bob"})
            assert not await bob.tasks.reject(id, "publish")
            run = await until(ada, id, lambda run: run.status == "done")
            assert (run.name, run.value, run.result) == ("publish", {"page": 2}, 2)
            assert await bob.tasks.get(id) == run
            assert await bob.tasks.get("none") is None
            again = await bob.tasks.run("publish", 1)
            await until(bob, again, lambda run: run.value)
            assert await bob.tasks.reject(again, "publish")
            assert (await until(bob, again, lambda run: run.status == "done")).result == 0


async def test_statuses_come_in_order_with_the_state_and_the_messages(tmp_path: Path) -> None:
    async with (
        running(make_app(tmp_path)) as address,
        asyncio.timeout(TIMEOUT),
        connect(f"ws://{address}/threads/desk/one") as ada,
    ):
        seen: list[tuple[int, int, int]] = []

        def look(_: object) -> None:
            runs = [run.value["page"] for run in ada.tasks.items if run.value]
            seen.append((ada.confirmed["shown"], len(ada.messages.items), runs[0] if runs else 0))

        await ada.messages.open()
        await ada.tasks.open()
        ada.tasks.on_change(look)
        ada.messages.on_change(look)
        id = await ada.tasks.run("publish", 20)
        await until(ada, id, lambda run: run.value == {"page": 20})
        assert all(shown >= messages >= page for shown, messages, page in seen)
        assert {page for _, _, page in seen} == {*range(21)}


async def test_a_late_reader_and_one_that_was_cut_off_see_the_runs_as_they_are(tmp_path: Path) -> None:
    async with running(make_app(tmp_path)) as address, asyncio.timeout(TIMEOUT):
        url = f"ws://{address}/threads/desk/one"
        async with connect(url) as ada:
            id = await ada.tasks.run("publish", 1)
            await until(ada, id, lambda run: run.value)
            async with connect(url) as late:
                assert [run.value for run in await late.tasks.open()] == [{"page": 1}]
                for room in (ada, late):
                    with pytest.raises(Exception, match="lost"):
                        await room.call("cut")
                more = await late.tasks.run("publish", 3)
                await until(ada, more, lambda run: run.value == {"page": 3})
                assert [run.id for run in ada.tasks.items] == [id, more]


async def test_a_key_joins_a_run_that_has_not_ended(tmp_path: Path) -> None:
    async with (
        running(make_app(tmp_path)) as address,
        asyncio.timeout(TIMEOUT),
        connect(f"ws://{address}/threads/desk/one") as ada,
    ):
        first = await ada.tasks.run("publish", 1, key="k")
        assert await ada.tasks.run("publish", 1, key="k") == first
        assert await ada.tasks.run("publish", 1) != first


async def test_clients_begin_only_what_is_for_them_with_arguments_that_fit(tmp_path: Path) -> None:
    async with (
        running(make_app(tmp_path)) as address,
        asyncio.timeout(TIMEOUT),
        connect(f"ws://{address}/threads/desk/one") as ada,
    ):
        for name, arguments, code in (
            ("clean", ["x"], "method_not_found"),
            ("none", [], "method_not_found"),
            ("publish", ["many"], "invalid_arguments"),
            ("publish", [], "invalid_arguments"),
        ):
            with pytest.raises(CallError) as refused:
                await ada.tasks.run(name, *arguments)
            assert refused.value.code == code
        with pytest.raises(CallError) as refused:
            await ada.tasks.run("publish", 1, key="")
        assert refused.value.code == "invalid_arguments"
        assert await ada.tasks.open() == []


async def test_clients_see_neither_arguments_nor_errors_nor_results_of_tasks_that_are_not_for_them(
    tmp_path: Path,
) -> None:
    async with (
        running(make_app(tmp_path)) as address,
        asyncio.timeout(TIMEOUT),
        connect(f"ws://{address}/threads/desk/one") as ada,
        httpx.AsyncClient(base_url=f"http://{address}/threads/desk/one") as web,
    ):
        cleaning, failing = await ada.call("begin_cleaning"), await ada.tasks.run("fail")
        await until(ada, cleaning, lambda run: run.value == "cleaning")
        await until(ada, failing, lambda run: run.status == "failed")
        assert await ada.call("let_go", cleaning)
        run = await until(ada, cleaning, lambda run: run.status == "done")
        assert run.result is None
        assert SECRET not in repr(ada.tasks.items) + repr([await ada.tasks.get(each) for each in (cleaning, failing)])
        assert SECRET not in (await web.get("/tasks")).text + (await web.get(f"/tasks/{cleaning}")).text


async def test_without_authorize_no_client_decides_about_runs_by_any_door(tmp_path: Path) -> None:
    async with running(make_app(tmp_path)) as address, asyncio.timeout(TIMEOUT):
        place = f"{address}/threads/desk/one"
        async with (
            connect(f"ws://{place}") as ada,
            connected(address, "/threads/desk/one") as cloudflare,
            httpx.AsyncClient(base_url=f"http://{place}") as web,
        ):
            id = await ada.tasks.run("publish", 1)
            for refused in (ada.tasks.send(id, "x"), ada.tasks.approve(id, "publish"), ada.tasks.cancel(id)):
                with pytest.raises(CallError) as error:
                    await refused
                assert error.value.code == "forbidden"
            for method, arguments in (("tasks:send", [id, "publish", {"approved": True}]), ("tasks:cancel", [id])):
                with pytest.raises(CloudflareError, match="Forbidden"):
                    await cloudflare.call(method, *arguments)
                answer = await web.post(f"/rpc/{method}", json={"args": arguments})
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
            # The code of the server may.
            run = await ada.tasks.get(id)
            assert run is not None
            assert run.status in ("waiting", "running", "sleeping")
            assert await cloudflare.call("task:publish", 1) != id


async def test_approve_and_call_are_rights_of_their_own_by_every_door(tmp_path: Path) -> None:
    async with running(make_app(tmp_path, may=may_all_but)) as address, asyncio.timeout(TIMEOUT):
        place = f"{address}/threads/desk/one"

        async def post(user: str, method: str, *arguments: Any) -> Any:
            head = {"authorization": f"Bearer {user}"}
            async with httpx.AsyncClient(headers=head) as web:
                answer = (await web.post(f"http://{place}/rpc/{method}", json={"args": arguments})).json()
            return answer["result"] if "result" in answer else answer["error"]["code"]

        async with (
            connect(f"ws://{place}", token="approve") as beginner,
            connect(f"ws://{place}", token="call") as approver,
        ):
            id = await beginner.tasks.run("publish", 1)
            with pytest.raises(CallError) as error:
                await beginner.tasks.approve(id, "publish")
            assert error.value.code == "forbidden"
            with pytest.raises(CallError) as error:
                await approver.tasks.run("publish", 1)
            assert error.value.code == "forbidden"
            assert await post("approve", "tasks:send", id, "publish", {"approved": True}) == "forbidden"
            assert await post("call", "task:publish", 1) == "forbidden"
            assert await post("call", "tasks:send", id, "other")
            assert await approver.tasks.approve(id, "publish")
            assert (await until(approver, id, lambda run: run.status == "done")).result == 1
            more = await post("approve", "task:publish", 1)
            assert await post("call", "tasks:cancel", more)
            assert not await approver.tasks.cancel(more)
            assert (await until(approver, more, lambda run: run.status == "cancelled")).result is None


@pytest.mark.parametrize(("query", "token"), [("?readonly", "bob"), ("", "write")])
async def test_a_readonly_connection_begins_no_run_and_decides_about_them_if_it_may_approve(
    tmp_path: Path, query: str, token: str
) -> None:
    async with running(make_app(tmp_path, may=may_all_but)) as address, asyncio.timeout(TIMEOUT):
        url = f"ws://{address}/threads/desk/one"
        refused = connect(f"{url}{query}", token=f"{token}-approve")
        async with connect(url, token="ada") as ada, connect(f"{url}{query}", token=token) as reader, refused as other:
            first, second = [await ada.tasks.run("publish", 1) for _ in range(2)]
            await until(reader, second, lambda run: run.value)
            with pytest.raises(CallError) as error:
                await reader.tasks.run("publish", 1)
            assert error.value.code == "readonly"
            for refusing in (other.tasks.approve(first, "publish"), other.tasks.cancel(second)):
                with pytest.raises(CallError) as error:
                    await refusing
                assert error.value.code == "forbidden"
            assert await reader.tasks.approve(first, "publish")
            assert await reader.tasks.cancel(second)
            assert (await until(reader, first, lambda run: run.status == "done")).value == {"page": 1}
            async with httpx.AsyncClient(headers={"authorization": f"Bearer {token}"}) as web:
                third = await ada.tasks.run("publish", 1)
                body = {"args": [third, "publish", {"approved": True}]}
                answer = await web.post(f"http://{address}/threads/desk/one/rpc/tasks:send{query}", json=body)
                assert answer.json() == {"result": True}
            assert len(reader.tasks.items) == 3


async def test_runs_are_listed_begun_and_decided_over_http(tmp_path: Path) -> None:
    async with running(make_app(tmp_path, may=may_all_but)) as address, asyncio.timeout(TIMEOUT):
        async with (
            connect(f"ws://{address}/threads/desk/one", token="ada") as ada,
            httpx.AsyncClient(
                base_url=f"http://{address}/threads/desk/one", headers={"authorization": "Bearer ada"}
            ) as web,
        ):
            body = {"args": [1], "kwargs": {"key": "k"}}
            id = (await web.post("/rpc/task:publish", json=body)).json()["result"]
            assert (await web.post("/rpc/task:publish", json=body)).json() == {"result": id}
            await until(ada, id, lambda run: run.value)
            (run,) = (await web.get("/tasks")).json()["runs"]
            assert {key: run[key] for key in ("id", "name", "value")} == {
                "id": id,
                "name": "publish",
                "value": {"page": 1},
            }
            sent = await web.post("/rpc/tasks:send", json={"args": [id, "publish", {"approved": True}]})
            assert sent.json() == {"result": True}
            await until(ada, id, lambda run: run.status == "done")
            found = (await web.get(f"/tasks/{id}")).json()
            assert (found["status"], found["result"]) == ("done", 1)
            missing = await web.get("/tasks/none")
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
            reader = {"authorization": "Bearer read"}
            assert (await web.get("/tasks", headers=reader)).status_code == 403
            assert (await web.get(f"/tasks/{id}", headers=reader)).status_code == 403
        async with httpx.AsyncClient(headers={"authorization": "Bearer ada"}) as web:
            assert (await web.get(f"http://{address}/threads/desk/none/tasks")).status_code == 404


async def test_tasks_that_are_not_live_are_not_shown(tmp_path: Path) -> None:
    async with (
        running(make_app(tmp_path)) as address,
        asyncio.timeout(TIMEOUT),
        connect(f"ws://{address}/threads/office/one") as ada,
        httpx.AsyncClient() as web,
    ):
        id = await ada.tasks.run("file")
        with pytest.raises(Refused, match="not_found"):
            await ada.tasks.open()
        with pytest.raises(CallError, match="tasks:get"):
            await ada.tasks.get(id)
        assert (await web.get(f"http://{address}/threads/office/one/tasks")).status_code == 404


async def test_the_blocking_client_has_tasks_too(tmp_path: Path) -> None:
    async with running(make_app(tmp_path, may=may_all_but)) as address:

        def work() -> None:
            with connect_sync(f"ws://{address}/threads/desk/one", timeout=TIMEOUT, token="ada") as room:
                seen: list[Sequence[TaskRun]] = []
                assert room.tasks.open() == []
                remove = room.tasks.on_change(seen.append)
                ids = [room.tasks.run("publish", 1, key=f"{number}") for number in range(3)]
                assert room.tasks.approve(ids[0], "publish")
                assert room.tasks.reject(ids[1], "publish", reason="no")
                assert room.tasks.cancel(ids[2])
                assert not room.tasks.send(ids[2], "late")
                found = room.tasks.get(ids[2])
                assert found is not None
                assert found.status == "cancelled"
                assert room.tasks.is_ready
                assert {run.id for run in room.tasks.items} == {*ids}
                assert seen
                remove()
                room.tasks.close()
                with pytest.raises(Refused, match="not_found"):
                    room.tasks.of("jobs").open()

        async with asyncio.timeout(TIMEOUT):
            await asyncio.to_thread(work)
