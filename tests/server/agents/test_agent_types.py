"""What the clients of an app must know of its agents."""

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from plait import Context, MemoryStore, Plait, Thread


class Card(msgspec.Struct, frozen=True):
    title: str


class Desk(Thread[Card]):
    initial_state = Card("one")


def make_app() -> Plait:
    app = Plait(Desk, store=MemoryStore())

    @app.agent("support", thread=Desk)
    async def support(ctx: Context, question: Card) -> str:
        """Answer a question."""
        return question.title

    @app.agent("count", thread=Desk)
    async def count(ctx: Context, upto: int = 3) -> AsyncIterator[Card]:
        yield Card(str(upto))

    @app.agent("tidy", thread=Desk)
    async def tidy(ctx: Context) -> None:
        pass

    @app.agent("loose", thread=Desk, input=int)
    async def loose(ctx: Any, given):  # type: ignore[no-untyped-def]
        return given

    return app


def test_agents_are_methods_with_their_input_and_what_a_run_gives() -> None:
    text = make_app().types()["plait-types.ts"]
    rpcs = text.partition("export interface DeskRpcs {\n")[2].partition("}\n")[0]
    assert (
        rpcs
        == """\
  "run:count"(upto?: number): AsyncIterable<Card>;
  /** Interrupt the run of this thread, or the work after it; return whether there is one. */
  "run:interrupt"(message?: unknown): boolean;
  "run:loose"(given: number): unknown;
  /** Answer a question. */
  "run:support"(question: Card): string;
  "run:tidy"(): void;
"""
    )


def test_agents_are_in_the_json_schema_under_the_names_by_which_they_are_called() -> None:
    rpcs = json.loads(make_app().types()["plait-types.json"])["kinds"]["desk"]["rpcs"]
    assert {name: rpc["positional"] for name, rpc in rpcs.items()} == {
        "run:count": ["upto"],
        "run:interrupt": ["message"],
        "run:loose": ["given"],
        "run:support": ["question"],
        "run:tidy": [],
    }
    assert rpcs["run:support"]["arguments"]["properties"] == {"question": {"$ref": "#/$defs/Card"}}
