"""Edits change what was meant, and nothing else, also after refusals, and whatever the network does."""

import asyncio
import copy
import random
from collections import defaultdict
from typing import Any

from tests.integration.convergence import Member, World
from tests.schedules import play_seeds

from plait import Reject, Retention, Thread
from plait_schemas.patch import Op

FIRST = [{"id": f"s{n}", "tags": {}} for n in range(4)]


class Items(Thread[dict[str, Any]]):
    """A list of elements with ids; some ids are refused."""

    initial_state = {"list": FIRST}  # noqa: RUF012
    retention = Retention(changes=None)

    def validate_state_change(self, next_state: dict[str, Any], source: object) -> None:
        if any(item["id"].startswith("bad") for item in next_state["list"]):
            raise Reject("not that", path="/list")


class Editors:
    """Clients that put in, take out and tag items, as dice say."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world = world
        self.dice = dice
        self.count = 0
        self.removals: list[tuple[Member, int, str]] = []
        self.insertions: list[tuple[Member, int, str]] = []
        # What the server has left out of a list that it rebuilt.
        self.dropped: set[str] = set()
        # By number: who has put which tag to which item.
        self.tags: dict[int, tuple[Member, str]] = {}

    async def step(self) -> None:
        """Do something."""
        world, dice = self.world, self.dice
        member = dice.choice(world.members)
        match dice.choices(["edit", "up", "down", "connect", "cut", "kill"], [25, 25, 30, 8, 3, 0.5])[0]:
            case "edit" if member.session.epoch is not None:
                self.edit(member)
            case "up":
                await world.carry_up(member)
            case "down":
                world.carry_down(member)
            case "connect":
                world.connect(member)
            case "cut":
                world.cut(member)
            case "kill":
                await world.kill()
            case _:
                pass
        await world.rest()

    async def trouble(self) -> None:
        """Change something as the server, or break the disk or a socket."""
        world, dice = self.world, self.dice
        match dice.choice(["hold", "release", "release", "fail", "server", "abandon", "late", "late", "late"]):
            case "hold" | "release" as what:
                world.hold(is_held=what == "hold")
            case "fail":
                world.fail_next()
            case "server" if (actor := world.awake()) is not None:
                self.count += 1
                with actor.thread.edit() as draft:
                    draft["list"].insert(dice.randrange(len(draft["list"]) + 1), {"id": f"v{self.count}", "tags": {}})
            case "abandon":
                member = dice.choice(world.members)
                world.abandon(member)
                world.connect(member)
            case "late" if world.abandoned:
                world.carry_late(dice.choice(world.abandoned))
            case _:
                pass
        await world.rest()

    async def rebuild(self) -> None:
        """Rebuild the list of copies, as the server."""
        dice, actor = self.dice, self.world.awake()
        if actor is None:
            return
        items = copy.deepcopy(actor.thread.state["list"])
        match dice.choice(["rotate", "filter", "reverse", "shuffle", "prepend", "gaps", "replace"]):
            case "rotate":
                items = items[1:] + items[:1]
            case "filter":
                items = [item for item in items if dice.random() < 0.8]
            case "reverse":
                items = items[::-1]
            case "shuffle":
                dice.shuffle(items)
            case "prepend":
                items = [self.made(), self.made(), *items]
            case "gaps":
                items = [self.made(), *items[1:-2], self.made(), *items[-1:]]
            case _:
                items = [item if dice.random() < 0.8 else self.made() for item in items]
        kept = {item["id"] for item in items}
        self.dropped |= {item["id"] for item in actor.thread.state["list"] if item["id"] not in kept}
        actor.thread.set_state({"list": items})
        await self.world.rest()

    def made(self) -> dict[str, Any]:
        """Return an item of the server's."""
        self.count += 1
        return {"id": f"v{self.count}", "tags": {}}

    def edit(self, member: Member) -> None:
        """Change a client's shown state."""
        self.count += 1
        shown = member.session.shown["list"]
        at = self.dice.randrange(len(shown) + 1)
        what = self.dice.choices(["insert", "bad", "remove", "tag", "both"], [3, 3, 2, 5, 3])[0]
        ops: list[Op] = []
        if what == "remove" and at < len(shown):
            ops = [Op("remove", f"/list/{at}")]
            self.removals.append((member, self.count, shown[at]["id"]))
        if what in ("tag", "both") and at < len(shown):
            ops = [Op("add", f"/list/{at}/tags/t{self.count}", shown[at]["id"])]
            self.tags[self.count] = member, shown[at]["id"]
        if what in ("insert", "bad", "both") or at == len(shown):
            id = f"{'bad' if what == 'bad' else 'e'}{self.count}"
            # Others may take away the place of what goes with it.
            ops.append(Op("add", f"/list/{0 if ops else at}", {"id": id, "tags": {}}))
            self.insertions.append((member, self.count, id))
        member.made(self.count, member.session.push(ops))
        member.note()
        self.world.flush(member)

    def check(self, final: list[dict[str, Any]]) -> None:
        """Check that the list has what came of each edit, and nothing that did not."""
        there = {item["id"] for item in FIRST}
        there |= {id for member, number, id in self.insertions if member.outcomes[number] == "ack"}
        there -= {id for member, number, id in self.removals if member.outcomes[number] == "ack"} | self.dropped
        assert sorted(item["id"] for item in final if item["id"][0] != "v") == sorted(there)
        meant: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for number, (member, id) in self.tags.items():
            if member.outcomes[number] == "ack":
                meant[id][f"t{number}"] = id
        for item in final:
            assert item["tags"] == meant[item["id"]]

    def check_refusals(self, final: list[dict[str, Any]]) -> None:
        """Check that nothing was refused without a reason."""
        there = {item["id"] for item in final}
        for member, number, id in self.insertions:
            is_lost = number in self.tags and self.tags[number][1] not in there
            assert (member.outcomes[number] == "ack") == id.startswith("e") or is_lost


@play_seeds(5)
def test_every_edit_hits_what_was_meant(seed: int) -> None:
    asyncio.run(_run(seed, is_troubled=False))


@play_seeds(5)
def test_every_edit_hits_what_was_meant_whatever_goes_wrong(seed: int) -> None:
    """The disk waits and fails, and what clients sent on sockets that they gave up arrives late."""
    asyncio.run(_run(seed, is_troubled=True))


@play_seeds(5)
def test_every_edit_hits_what_was_meant_while_the_server_rebuilds_the_list(seed: int) -> None:
    asyncio.run(_run(seed, is_troubled=False, is_rebuilt=True))


async def _run(seed: int, *, is_troubled: bool, is_rebuilt: bool = False) -> None:
    dice = random.Random(seed)
    world = World(Items, [f"m{n}" for n in range(dice.randint(1, 3))])
    await world.start()
    editors = Editors(world, dice)
    for member in world.members:
        world.connect(member)
    for _ in range(dice.randint(30, 200)):
        if is_troubled and dice.random() < 0.25:
            await editors.trouble()
        elif is_rebuilt and dice.random() < 0.1:
            await editors.rebuild()
        else:
            await editors.step()
    await world.quiet()
    final = (await world.actor()).thread.state
    for member in world.members:
        assert member.session.shown == final
    editors.check(final["list"])
    if not (is_troubled or is_rebuilt):
        editors.check_refusals(final["list"])
    await world.stop()
