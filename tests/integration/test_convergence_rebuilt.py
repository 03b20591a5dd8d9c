"""A server that rebuilds its lists, and clients that edit elements of them: each edit reaches the element it means.

Every element carries a secret, and everything that is written into an element names the secret of the one that is
meant. So a state in which some element holds another's secret is one in which an edit has gone astray.
"""

import asyncio
import logging
import random
from collections import Counter
from typing import Any, ClassVar, NamedTuple

import msgspec
import pytest
from tests.integration.builds import Builds
from tests.integration.convergence import Member, World
from tests.integration.convergence_sessions import NodeMember, NodeSessions, node_sessions
from tests.integration.rebuilt_lists import (
    KINDS,
    NAMES,
    REBUILDS,
    Element,
    Lists,
    check_secrets,
    drag,
    element,
    plain,
    secrets,
)
from tests.integration.test_convergence import Schedule
from tests.schedules import SEED, schedules

from plait import Thread
from plait_schemas.patch import Op

log = logging.getLogger(__name__)


State = dict[str, Any]


class Target(NamedTuple):
    """An element of a list that a client is shown."""

    name: str
    path: str
    items: list[Element]
    at: int

    @property
    def secret(self) -> str:
        return str(self.items[self.at]["secret"])


class Rebuilding(Schedule):
    """Clients that edit elements beside a server that rebuilds its lists, as dice say."""

    weights: ClassVar = Schedule.weights | {"down": 25.0, "server": 10.0, "kill": 0.3}

    def __init__(self, world: World, dice: random.Random) -> None:
        super().__init__(world, dice)
        self.counts: Counter[str] = Counter()
        # By number: what a client meant to take out.
        self.removals: dict[int, tuple[Member, Element]] = {}
        # What the server has taken out, and what it and clients have put into the lists that always exist.
        self.dropped: set[str] = set()
        self.brought: set[str] = set()
        self.insertions: dict[int, tuple[Member, str]] = {}

    async def step(self) -> None:
        """Do something."""
        await super().step()
        for each in self.world.members:
            check_secrets(each.session.shown)
            check_secrets(each.session.confirmed)

    # The server

    def change(self, thread: Thread[Any]) -> None:
        """Set a state with rebuilt lists as the server."""
        name = self.dice.choice(list(NAMES))
        before, after = plain(thread.state), plain(thread.state)
        after[name] = self._rebuilt(name, after[name])
        if name == "items" and self.dice.random() < 0.5:
            for item in after[name]:
                if self.dice.random() < 0.1:
                    item.pop("inner", None)
                if item.get("inner"):
                    item["inner"] = self._rebuilt(name, item["inner"])
        self.dropped |= set(secrets(before)) - set(secrets(after))
        self.brought |= {item["secret"] for item in after[name]} - {item["secret"] for item in before[name]}
        self.counts["rebuilds"] += 1
        value = msgspec.convert(after, type(thread.state)) if isinstance(thread.state, Lists) else after
        thread.set_state(value)

    def _rebuilt(self, name: str, items: list[Element]) -> list[Element]:
        dice = self.dice
        if items:
            items = dice.choice(REBUILDS)(items, dice)
        for _ in range(dice.choice([0, 0, 1, 1, 2]) + (len(items) < 3)):
            items.insert(dice.choice([0, len(items), dice.randint(0, len(items))]), element(name, self._secret("v")))
        if NAMES[name] is not None and dice.random() < 0.4:
            for item in items:
                if dice.random() < 0.3:
                    item["marks"][f"v{self._next()}"] = item["secret"]
        return items

    # The clients

    def edit(self, member: Member) -> None:
        """Change a client's shown state."""
        number, dice = self._next(), self.dice
        target = self._target(member.session.shown)
        kinds = ["mark", "mark", "text", "tag", "two", "whole", "remove", "insert", "drag", "filter"]
        kind = dice.choice(kinds) if target.items else "insert"
        if kind == "whole" and target.items[target.at].get("inner"):
            kind = "mark"  # It would bring back what others have taken out in there.
        if kind in ("drag", "filter"):
            self._rebuild(member, number, target.name, kind)
            return
        ops = self._ops(number, kind, target)
        if kind == "remove":
            self.removals[number] = member, target.items[target.at]
        if kind == "insert" and target.path == f"/{target.name}":
            self.insertions[number] = member, ops[0].value["secret"]
        self._made(member, kind, is_pushed=member.push(number, ops))

    def _target(self, shown: State) -> "Target":
        dice = self.dice
        name = dice.choice(list(NAMES))
        path, items = f"/{name}", shown[name]
        if name == "items" and items and items[0].get("inner") and dice.random() < 0.4:
            path, items = f"/{name}/0/inner", items[0]["inner"]
        return Target(name, path, items, dice.randrange(len(items)) if items else 0)

    def _ops(self, number: int, kind: str, target: "Target") -> list[Op]:
        name, path, items, at = target
        if kind == "insert":
            return [Op("add", f"{path}/{self.dice.randint(0, len(items))}", element(name, self._secret("c")))]
        secret, place = target.secret, f"{path}/{at}"
        match kind:
            case "text":
                return [Op("replace", f"{place}/text", f"{secret}:{number}")]
            case "tag":
                return [Op("add", f"{place}/tags/{self.dice.randint(0, len(items[at]['tags']))}", f"{secret}:{number}")]
            case "whole":
                item = items[at]
                return [Op("replace", place, {**item, "marks": {**item["marks"], f"w{number}": secret}})]
            case "remove":
                return [Op("remove", place)]
            case "two":
                other = self.dice.randrange(len(items))
                return [
                    Op("add", f"{place}/marks/m{number}", secret),
                    Op("add", f"{path}/{other}/marks/n{number}", items[other]["secret"]),
                ]
            case _:
                return [Op("add", f"{place}/marks/m{number}", secret)]

    def _rebuild(self, member: Member, number: int, name: str, kind: str) -> None:
        """Set a whole state with a rebuilt list as a client."""
        after = plain(member.session.shown)
        if kind == "drag":
            after[name] = drag(after[name], self.dice)
        else:
            taken = after[name].pop(self.dice.randrange(len(after[name])))
            self.removals[number] = member, taken
        self._made(member, kind, is_pushed=member.set(number, after))

    def _made(self, member: Member, kind: str, *, is_pushed: bool) -> None:
        self.counts[kind] += is_pushed
        self.world.flush(member)

    def _next(self) -> int:
        self.count += 1
        return self.count

    def _secret(self, who: str) -> str:
        return f"{who}{self._next()}"

    # The end

    def check(self, final: State) -> None:
        """Check that each remaining element is there once, with its changes."""
        found = Counter(secrets(final))
        assert set(found.values()) <= {1}, f"elements that are there twice: {found - Counter(set(found))}"
        # To a client that came back to a whole state, a changed element without an id is another one.
        changed = [item["secret"] for item in final["plain"]]
        for number, (member, item) in self.removals.items():
            secret = item["secret"]
            if member.outcomes.get(number) == "ack" and (secret not in changed or item in final["plain"]):
                assert secret not in found, f"{secret} was taken out, which was acknowledged, and is there"
        taken = self.dropped | {item["secret"] for _, item in self.removals.values()}
        # What was not on the disk is lost when the server is killed.
        if not self.world.kills:
            assert not self.dropped & set(found), "what the server has taken out is there again"
            assert self.brought <= taken | set(found), "what the server has put in was replaced by another element"
        for number, (member, secret) in self.insertions.items():
            if member.outcomes[number] == "ack":
                assert secret in found or secret in taken, (
                    f"{secret} was put in, which was acknowledged, and is not there"
                )


async def play(seed: int, kind: type[Thread[Any]], node: NodeSessions) -> Counter[str]:
    """Play one schedule, and check how it ends."""
    dice = random.Random(seed)
    clients = dice.randint(2, 5)
    in_node = dice.randint(0, clients)
    world = World(kind, [f"python-{n}" for n in range(clients - in_node)])
    node.tell("forget", name="")
    world.members += [NodeMember(node, world, f"node-{n}") for n in range(in_node)]
    await world.start()
    schedule = Rebuilding(world, dice)
    for member in world.members:
        world.connect(member)
    for _ in range(dice.randint(20, 120)):
        await schedule.step()
    await world.quiet()
    final = plain((await world.actor()).thread.state)
    check_secrets(final)
    for member in world.members:
        assert member.session.shown == member.session.confirmed == final, f"{member.name} shows another state"
    schedule.check(final)
    outcomes = Counter(outcome for member in world.members for outcome in member.outcomes.values())
    await world.stop()
    return schedule.counts + outcomes


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_edit_reaches_another_element_however_the_server_rebuilds_its_lists(builds: Builds) -> None:
    log.warning("PLAIT_SEED=%d", SEED)
    counts: Counter[str] = Counter()
    count = schedules(10)
    with node_sessions(builds) as node:
        for seed in range(SEED, SEED + count):
            try:
                counts += asyncio.run(play(seed, KINDS[seed % len(KINDS)], node))
            except Exception as error:
                error.add_note(f"schedule {seed}")
                raise
    log.warning("%d schedules: %s", count, dict(counts))
    assert all(counts[what] for what in ("ack", "conflict", "rebuilds", "drag", "filter", "remove", "two", "whole"))
