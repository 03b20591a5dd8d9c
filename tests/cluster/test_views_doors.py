"""No door tells a reader a part of a state that it may not see, or shows it another picture than its own."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cluster.engines import Engine, each_engine
from tests.cluster.nodes import open_cluster
from tests.running import Process
from tests.schedules import TIMES
from tests.views_app import KINDS
from tests.views_guesses import guess, guess_by_a_run
from tests.views_readers import Tape
from tests.views_stage import Stage, add, open_stage, put, remove, splice, version_of
from tests.workers.group import Group

from plait_schemas.patch import Op, apply

APP = "tests.views_app:app"
# By their kinds, the names of the threads that are played; the others have types.
GAMES = {each._kind.name: "one" for each in KINDS}
PLAIN_GAMES = dict(list(GAMES.items())[:2])
ENVIRONMENT = {"PLAIT_LIMITS": "none", "PLAIT_SECRET": "s" * 32}

# Frames and answers that the longer test reads.
FRAMES = 5_000 if TIMES == 1 else 1_000_000


@asynccontextmanager
async def serving(folder: Path, *, workers: int = 1, anonymous: bool = False) -> AsyncIterator[tuple[Tape, str]]:
    """Serve the games; no reader may receive a secret of others, and no log has any."""
    tape = Tape()
    environment = ENVIRONMENT | {"PLAIT_STORE": f"sqlite:///{folder / 'games.db'}"}
    if anonymous:
        environment["VIEWS_ANONYMOUS"] = "1"
    options: dict[str, Any] = {"cwd": folder, "environment": environment}
    with Process(APP, **options) if workers == 1 else Group(APP, count=workers, **options) as server:
        yield tape, server.address
        tape.check()
        assert server.end() == 0
    assert not tape.search(server.log.read_text())


async def play_all(tape: Tape, addresses: Sequence[str], names: Mapping[str, str], **options: Any) -> None:
    """Play some games at once, by the kinds and names of their threads."""
    async with asyncio.TaskGroup() as games:
        for kind, name in names.items():
            games.create_task(play(tape, addresses, kind, name, **options), name=kind)
    tape.check()


async def play(tape: Tape, addresses: Sequence[str], kind: str, name: str, *, is_anonymous: bool = False) -> None:
    """Play a game, with readers at all doors."""
    async with open_stage(tape, addresses, kind, name, is_anonymous=is_anonymous) as stage:
        await stage.open_doors()
        if not is_anonymous:  # The sessions of agents are of users.
            await stage.open_runs()
        await stage.act()
        await stage.settle()
        for reader in stage.readers:
            await guess(stage, reader)
            await resume(stage, reader)
            await resume_events(stage, reader)
            await ask(stage, reader)
        await ask_the_server(stage, stage.readers[0])
        if not is_anonymous:
            await resume_a_run(stage, "eve")
            await stage.end_runs()
            await guess_by_a_run(stage, "bob")
        if stage.varies:
            await reveal(stage)
        await stage.settle()


# What is told after a gap


async def resume(stage: Stage, name: str) -> None:
    """Join again with a version of one's own, with that of another reader, and with a raw one."""
    user = stage.user(name)
    socket = await user.join("resumed")
    own, state = (socket.epoch, socket.version), socket.state
    assert not any(epoch == own[0] for other, epoch in await find_epochs(stage) if other != name)
    await socket.close()
    await stage.change([add("/deck/0", stage.secret())], [put("/turn", f"after {name} left")])
    await stage.change([put("/story/private", stage.secret()), splice("/story/public", "so ")])
    again = await user.join("resumed", own, state)
    assert ("ops" in again.frames[0]) is not stage.varies
    assert ("state" in again.frames[0]) is stage.varies
    assert again.epoch == own[0]
    others = [epoch for other, epoch in await find_epochs(stage) if other != name]
    for epoch in (*others, own[0].partition(".")[0], f"{own[0].partition('.')[0]}.{'0' * 12}"):
        for version in (own[1], again.version, again.version + 1):
            joined = await user.join("resumed as another", (epoch, version), {})
            assert "state" in joined.frames[0]
            assert joined.state == again.state
            await joined.close()
    assert again.state == stage.picture(await stage.whole(), name)
    await again.close()


async def find_epochs(stage: Stage) -> list[tuple[str, str]]:
    """Return the epoch of each user who sees something else than the others."""
    names = () if stage.is_anonymous else ("ada", "bob", *(("olga",) if stage.varies else ()))
    tags = [(name, (await stage.user(name).ask()).headers["etag"]) for name in names]
    return [(name, tag.strip('"').partition(":")[0]) for name, tag in tags]


async def resume_events(stage: Stage, name: str) -> None:
    """Read events again, after the last one, after one of another reader, and after a raw one."""
    user = stage.user(name)
    events = user.stream(door="events resumed")
    await events.until(lambda events: events.events)
    await events.close()
    await stage.change([add("/deck/0", stage.secret())], [put("/turn", f"{name} reads again")])
    epoch, _, version = events.id.partition(":")
    others = [epoch for other, epoch in await find_epochs(stage) if other != name]
    for each in (epoch, *others, epoch.partition(".")[0]):
        for path, headers in (
            ("/changes", {"last-event-id": f"{each}:{version}"}),
            (f"/changes?since={each}:{version}", {}),
        ):
            again = user.stream(path, headers=headers, door="events resumed")
            await again.until(lambda events: events.events or events.status >= 400)
            first = again.events[0]
            if again.status == 200:
                assert ("ops" in first) is (each == epoch and not stage.varies), (each, first)
                assert "ops" in first or first["state"] == await user.state()
            await again.close()


async def resume_a_run(stage: Stage, name: str) -> None:
    """Watch a run again after an event, with the version of another reader, and with a raw one."""
    (_, run) = next(each for each in stage.runs if each[0] == name)
    old = run.id
    await stage.change([add("/deck/0", stage.secret())], [put("/turn", f"{name} watches again")])
    await run.until(lambda run: version_of(run.id) >= stage.version)
    own = old.partition(":")[0]
    others = [own.partition(".")[0], *(epoch for other, epoch in await find_epochs(stage) if other != name)]
    picture = stage.picture(await stage.whole(), name)
    # The last version of another picture tells nothing, either.
    for epoch, id in ((own, old), *((epoch, id) for epoch in others for id in (old, run.id))):
        for at in range(len(stage.addresses)):
            _, again = stage.watch_run(name, at, f"{epoch}:{id.split(':', 1)[1]}")
            await again.until(lambda run: version_of(run.id) >= stage.version and run.events)
            assert all(event["type"] != "STATE_DELTA" for event in again.events)
            assert [event["snapshot"] for event in again.events if "snapshot" in event][-1] == picture
            await again.close()


# What is asked for


async def ask(stage: Stage, name: str) -> None:
    """Ask for everything that HTTP has of a thread, at each address."""
    for at in range(len(stage.addresses)):
        user = stage.user(name, at)
        state = await user.ask()
        tag = state.headers["etag"]
        raw = f'"{tag.strip(chr(34)).partition(".")[0]}:{version_of(tag)}"'
        for given in (tag, raw):
            answer = await user.ask(headers={"if-none-match": given})
            assert answer.status_code == (304 if given == tag else 200)
        assert (await user.ask(method="HEAD")).headers["content-length"] == str(len(state.content))
        for version in {*range(0, version_of(tag), 3), *range(version_of(tag) - 9, version_of(tag) + 1)}:
            assert (await user.ask(f"?at={version}", door="at")).status_code == 200
        await ask_for_changes(stage, name, tag.strip('"'), at)
        for path in ("/nothing", "/tasks"):
            assert (await user.ask(path)).status_code == 404


async def ask_for_changes(stage: Stage, name: str, tag: str, at: int) -> None:
    user, (epoch, _, version) = stage.user(name, at), tag.partition(":")
    log: list[Any] = []
    for patch in ("", "&patch=rfc6902"):
        seen = 0
        state = (await user.ask("?at=0", door="at")).json()
        while seen < int(version):
            answer = await user.ask(f"/changes?since={epoch}:{seen}&limit=7{patch}", door="changes")
            assert answer.status_code == (403 if stage.varies else 200)
            if stage.varies:
                break
            # The changes lead from each picture to the next.
            for row in answer.json()["changes"]:
                assert row["version"] == seen + 1
                assert not patch or all(op["op"] != "splice" for op in row["ops"])
                state, seen = apply(state, msgspec.convert(row["ops"], list[Op])), seen + 1
                log.append(row)
            assert state == (await user.ask(f"?at={seen}", door="at")).json()
        for each in (epoch.partition(".")[0], *(other for _, other in await find_epochs(stage) if other != epoch)):
            answer = await user.ask(f"/changes?since={each}:0{patch}", door="changes")
            assert answer.status_code == (403 if stage.varies else 404)
        await user.ask(f"/changes?limit=3{patch}", door="changes")
    hidden = [row for row in log if row["source"] == "hidden"]
    assert all(row["ops"] == [] and "at" not in row for row in hidden)
    assert hidden or stage.varies


async def ask_the_server(stage: Stage, name: str) -> None:
    """Ask for what a server tells of all threads."""
    user = stage.user(name)
    for path in ("/metrics", f"/threads/{stage.kind}"):
        assert (await user.ask_server(path, door=path)).status_code == 200
    listing = user.stream(f"/threads/{stage.kind}", door="listing")
    await listing.until(lambda listing: listing.events)
    await listing.close()


# What is shown, and hidden again


async def reveal(stage: Stage) -> None:
    """Show everything to everybody, hide it again, and see that the past stays as it was seen."""
    before = await stage.whole()
    stage.tape.allow_all(before)
    await stage.change([put("/turn", "over")])
    await stage.settle()
    bob = await stage.user(stage.readers[0]).join("while it is shown")
    shown, state = (bob.epoch, bob.version), bob.state
    events = stage.user(stage.readers[0]).stream(door="while it is shown")
    await events.until(lambda events: events.events)
    await events.close()
    assert (await bob.push_and_wait(add("/deck/0", "by bob")))["type"] == "ack"
    await stage.change([put("/turn", "hidden")])
    await stage.settle()
    await undo_what_is_hidden(stage, bob)
    await stage.act()
    await stage.settle()
    passing = stage.secret()
    steps = [put("/turn", "over")], [put("/turn", "on")], [add("/deck/0", passing)], [remove("/deck/0")]
    stage.tape.allow_all(await stage.whole())
    await stage.change(*steps, [put("/turn", "over")])
    await stage.settle()
    await bob.close()
    for have in (shown, (shown[0], stage.version - 3)):
        again = await stage.user(stage.readers[0]).join("resumed later", have, state)
        assert "state" in again.frames[0]
        await again.close()
    late = stage.user(stage.readers[0]).stream(door="resumed later", headers={"last-event-id": events.id})
    await late.until(lambda events: events.events)
    await ask(stage, stage.readers[0])
    await stage.change([put("/turn", "closed")])
    await stage.settle()
    await stage.change([put("/turn", "on"), put("/deck", [stage.secret()])])
    await stage.settle()


async def undo_what_is_hidden(stage: Stage, bob: Any) -> None:
    """Undo a change of a place that is hidden by now."""
    await bob.send("call", ref=77, method="undo_mine", args=[])
    await bob.until(lambda client: client.of(("result", "error"), ref=77))
    assert bob.of("error", ref=77)[0]["code"] == "forbidden", bob.of("result", ref=77)


# The servers


async def test_no_door_of_one_process_tells_what_a_reader_may_not_see(tmp_path: Path) -> None:
    async with serving(tmp_path) as (tape, address):
        await play_all(tape, [address], GAMES)


async def test_no_frame_of_a_large_state_has_a_secret(tmp_path: Path) -> None:
    async with serving(tmp_path) as (tape, address):
        for kind, name in GAMES.items():
            async with open_stage(tape, [address], kind, name, filler="x" * 20_000) as stage:
                await stage.open_doors()
                await stage.act()
                await stage.settle()
                await guess(stage, "bob")
                await resume(stage, "bob")


async def test_no_door_tells_an_anonymous_client_what_it_may_not_see(tmp_path: Path) -> None:
    async with serving(tmp_path, anonymous=True) as (tape, address):
        await play_all(tape, [address], GAMES, is_anonymous=True)


async def test_no_door_of_two_workers_tells_what_a_reader_may_not_see(tmp_path: Path) -> None:
    async with serving(tmp_path, workers=2) as (tape, address):
        await play_all(tape, [address, address], PLAIN_GAMES)


@each_engine("redis")
async def test_no_door_of_a_cluster_tells_what_a_reader_may_not_see(engine: Engine, tmp_path: Path) -> None:
    tape = Tape()
    async with open_cluster(engine, tmp_path, target=APP, environment=ENVIRONMENT) as cluster:
        nodes = zip(PLAIN_GAMES, "ab", strict=True)
        names = {kind: cluster.find_names(node, "game", 1, kind=kind)[0] for kind, node in nodes}
        await play_all(tape, cluster.addresses, names)
        logs = [node.log.read_text() for node in cluster.nodes.values()]
    assert not tape.search("".join(logs))


@pytest.mark.soak
async def test_no_frame_of_many_has_a_secret(tmp_path: Path) -> None:
    async with serving(tmp_path) as (tape, address), AsyncExitStack() as stack:
        stages = [await stack.enter_async_context(open_stage(tape, [address] * 3, kind, "one")) for kind in PLAIN_GAMES]
        for stage in stages:
            await stage.open_doors()
        while tape.count < FRAMES:
            await asyncio.gather(*[stage.act() for stage in stages])
        for stage in stages:
            await stage.settle()
