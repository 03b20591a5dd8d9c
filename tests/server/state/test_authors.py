"""Who wrote which part of a text."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.server.state.test_undo import Table, table

from plait.errors import Conflict
from plait.state.authors import find_authors
from plait.state.retention import Retention
from plait_schemas.patch import Op, splice


async def authors(made: Table, pointer: str = "/note") -> list[tuple[str | None, str]]:
    """Return who wrote what, in order."""
    await made.pipeline.wait_until_durable()
    text: Any = made.state
    for part in pointer.split("/")[1:]:
        text = text[int(part)] if isinstance(text, list) else text[part]
    found = await find_authors(made.change_log, made.pipeline.history.durable.version, pointer)
    assert [each.start for each in found] == [0, *(each.end for each in found)][: len(found)]
    return [(each.source, text[each.start : each.end]) for each in found]


async def test_each_part_is_of_who_wrote_it_and_what_was_there_before_is_of_nobody() -> None:
    async with table({"note": "some text"}) as made:
        made.change("ada", splice("/note", 4, 0, " more"))
        made.change("bob", splice("/note", 6, 2, "O"))
        made.change("ada", splice("/note", 13, 0, "!"))
        assert made.state == {"note": "some mOe text!"}
        assert await authors(made) == [
            (None, "some"),
            ("ada", " m"),
            ("bob", "O"),
            ("ada", "e"),
            (None, " text"),
            ("ada", "!"),
        ]


async def test_who_put_the_text_there_wrote_all_of_it() -> None:
    async with table({}) as made:
        made.change("ada", Op("add", "/note", "hello"))
        made.change("bob", splice("/note", 5, 0, "!"))
        assert await authors(made) == [("ada", "hello"), ("bob", "!")]
        made.change("eve", Op("replace", "/note", "new"))
        assert await authors(made) == [("eve", "new")]


async def test_a_text_is_followed_where_its_element_has_been() -> None:
    async with table({"cards": [{"body": ""}, {"body": "x"}]}) as made:
        made.change("ada", splice("/cards/0/body", 0, 0, "a"))
        made.change("bob", Op("add", "/cards/0", {"body": "new"}))
        made.change("eve", splice("/cards/1/body", 1, 0, "e"))
        made.change("bob", Op("remove", "/cards/1"), Op("add", "/cards/2", {"body": "ae"}, moved=True))
        made.change("ada", splice("/cards/2/body", 0, 0, "A"))
        assert [card["body"] for card in made.state["cards"]] == ["new", "x", "Aae"]
        assert await authors(made, "/cards/2/body") == [("ada", "Aa"), ("eve", "e")]
        assert await authors(made, "/cards/1/body") == [(None, "x")]
        assert await authors(made, "/cards/0/body") == [("bob", "new")]


async def test_what_was_undone_and_redone_is_of_who_wrote_it() -> None:
    async with table({"note": ""}) as made:
        made.change("bob", splice("/note", 0, 0, "bob's"))
        made.change("ada", splice("/note", 0, 5))
        await made.undo("ada")
        assert await authors(made) == [("bob", "bob's")]
        made.change("eve", splice("/note", 5, 0, "!"))
        await made.undo("eve")
        await made.redo("eve")
        assert await authors(made) == [("bob", "bob's"), ("eve", "!")]


async def test_what_is_older_than_the_log_is_of_nobody() -> None:
    async with table({"note": ""}, retention=Retention(changes=2)) as made:
        for index in range(30):
            made.change("ada", splice("/note", index * 5000, 0, "x" * 5000))
        made.change("bob", splice("/note", 0, 0, "!"))
        found = await authors(made)
        assert found[0] == ("bob", "!")
        assert found[1][0] is None
        assert found[-1][0] == "ada"
        assert sum(len(text) for _, text in found) == 150_001


@each_case("pointer", ["/n", "/nothing", "note"])
async def test_where_there_is_no_text_there_are_no_authors(pointer: str) -> None:
    async with table({"note": "", "n": 1}) as made:
        with pytest.raises(Conflict) as caught:
            await find_authors(made.change_log, 0, pointer)
        assert caught.value.path == pointer
        assert await authors(made) == []


async def test_others_run_while_the_authors_of_very_many_parts_are_looked_for_and_not_all_are_found() -> None:
    places = 4_000
    async with table({"note": "-" * 200_000}) as made:
        made.change("ada", *(splice("/note", 3 * index, 0, "y") for index in range(places)))
        await made.pipeline.wait_until_durable()
        looking = asyncio.create_task(find_authors(made.change_log, 1, "/note"))
        turns = 0
        while not looking.done():
            await asyncio.sleep(0)
            turns += 1
        found = await looking
        assert (found[0].start, found[-1].end) == (0, 200_000 + places)
        known = sum(each.end - each.start for each in found if each.source == "ada")
        assert turns > 100
        assert 500 < known < places


@given(
    start=st.text("xyz", max_size=5),
    edits=st.lists(
        st.tuples(st.sampled_from(["ada", "bob"]), st.integers(0, 9), st.integers(0, 3), st.text("abc", max_size=3))
    ),
)
def test_every_character_is_of_who_wrote_it(start: str, edits: list[tuple[str, int, int, str]]) -> None:
    async def play() -> None:
        async with table({"note": start}) as made:
            model: list[tuple[str | None, str]] = [(None, letter) for letter in start]
            for who, at, remove, insert in edits:
                place = min(at, len(model))
                count = min(remove, len(model) - place)
                model[place : place + count] = [(who, letter) for letter in insert]
                made.change(who, splice("/note", place, count, insert))
            found = [(source, letter) for source, text in await authors(made) for letter in text]
            assert found == model

    asyncio.run(play())
