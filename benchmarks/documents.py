"""The states that the loads push: JSON as applications have it, each one small change away from the last."""

import itertools
import random
from collections.abc import Iterator

import msgspec

__all__ = ["board", "call", "push", "revisions"]

TEXT = (
    "agree answer ask board build call card carry change check clear close column copy count customer date "
    "deliver deploy draft early edit error estimate explain file filter fix follow form green group hold idea "
    "import invoice keep label late list log mail measure meet merge message move name next note open order "
    "owner page paint plan price print question queue read ready record release reply report review round save "
    "search send share show sign sort start state stop store table task team test thank thread update user "
    "verify version wait week window work write"
)
WORDS = TEXT.split()


class Card(msgspec.Struct):
    """One card of a kanban board."""

    id: str
    title: str
    text: str
    column: str
    votes: int
    done: bool
    tags: list[str]
    by: dict[str, str]
    position: dict[str, float]


def card(number: int, pick: random.Random) -> Card:
    """A card of about 300 bytes of JSON."""
    return Card(
        id=f"card-{number:05d}",
        title=" ".join(pick.choices(WORDS, k=4)),
        text=" ".join(pick.choices(WORDS, k=9)),
        column=pick.choice(["backlog", "doing", "review", "done"]),
        votes=pick.randrange(10),
        done=pick.random() < 0.2,
        tags=pick.sample(WORDS, k=3),
        by={"name": pick.choice(["Ada", "Grace", "Linus", "Margaret"]), "color": f"#{pick.randrange(1 << 24):06x}"},
        position={"x": round(pick.random() * 800, 1), "y": round(pick.random() * 600, 1)},
    )


def board(size: int) -> list[Card]:
    """As many cards as fit into `size` bytes of JSON."""
    pick = random.Random(size)
    cards: list[Card] = []
    used = len(b'{"title":"Board","cards":[]}')
    for number in itertools.count():
        following = card(number, pick)
        used += len(msgspec.json.encode(following)) + 1
        if used > size:
            return cards
        cards.append(following)
    raise AssertionError("count() does not end")


def revisions(size: int) -> Iterator[bytes]:
    """States of about `size` bytes for ever; each differs from the one before in one field."""
    if size < 100:
        for n in itertools.count(1):
            yield msgspec.json.encode({"n": n, "turn": "Ada", "open": True})
    cards = board(size)
    pick = random.Random(1)
    for n in itertools.count(1):
        changed = pick.choice(cards)
        if n % 2:
            changed.votes += 1
        else:
            changed.title = f"{pick.choice(WORDS)} {pick.choice(WORDS)} {n}"
        yield msgspec.json.encode({"title": "Board", "cards": cards})


def push(state: bytes) -> bytes:
    """The text with which the published client writes a state."""
    return b'{"state":%b,"type":"cf_agent_state"}' % state


def call(number: int, method: str, *args: object) -> bytes:
    """The text with which the published client calls a method."""
    return msgspec.json.encode({"args": args, "id": str(number), "method": method, "type": "rpc"})
