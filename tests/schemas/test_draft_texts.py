"""Texts in a draft: what is set is done as splices, and lists are compared by what their elements are known by."""

from typing import Any

import pytest

from plait_schemas.draft import draft, recorded
from plait_schemas.elements import Keys
from plait_schemas.patch import Op, PatchError, splice

KEYS = Keys({"/cards": "slug"}, ["/note", "/cards/*/body", "/lines/*"])


def test_what_is_set_in_a_text_is_recorded_as_splices_and_in_other_strings_whole() -> None:
    document = {"note": "hello", "status": "doing", "lines": ["one", "two"]}
    edited: Any = draft(document, KEYS)
    edited.note += " you"
    edited.status = "done"
    edited.lines[-1] = "twos"
    edited.note = "hello you"
    edited["note"] = None
    assert recorded(edited) == [
        splice("/note", 5, 0, " you"),
        Op("replace", "/status", "done"),
        splice("/lines/1", 3, 0, "s"),
        Op("replace", "/note", None),
    ]
    assert document == {"note": "hello", "status": "doing", "lines": ["one", "two"]}


def test_a_draft_has_splices_by_a_members_name_or_an_index() -> None:
    edited: Any = draft({"note": "hello", "lines": ["one", "two"], "splice": "x"}, KEYS)
    edited.splice("note", 5, 0, " you")
    edited.splice("note", 0, 1, "J")
    edited.lines.splice(-1, 0, 3, "2")
    edited.splice("splice", 1, 0, "y")
    edited.splice("note", 3)
    assert (edited.note, list(edited.lines), edited["splice"]) == ("Jello you", ["one", "2"], "xy")
    assert recorded(edited) == [
        splice("/note", 5, 0, " you"),
        splice("/note", 0, 1, "J"),
        splice("/lines/1", 0, 3, "2"),
        splice("/splice", 1, 0, "y"),
    ]


def test_a_splice_that_does_not_fit_raises_and_records_nothing() -> None:
    edited: Any = draft({"note": "hello", "n": 1, "lines": ["one"]}, KEYS)
    for key, at, remove, insert in (
        ("note", 6, 0, "x"),
        ("note", 4, 2, ""),
        ("note", 0, 0, "\ud800"),
        ("n", 0, 0, "x"),
    ):
        with pytest.raises(PatchError, match=f"/{key}"):
            edited.splice(key, at, remove, insert)
    with pytest.raises(KeyError):
        edited.splice("nothing", 0, 0, "x")
    with pytest.raises(IndexError):
        edited.lines.splice(1, 0, 0, "x")
    assert recorded(edited) == []


def test_a_list_that_becomes_another_is_compared_by_the_keys_of_its_place() -> None:
    cards = [{"slug": "a", "body": "one"}, {"slug": "b", "body": "two"}, {"slug": "c", "body": "three"}]
    edited: Any = draft({"cards": cards}, KEYS)
    edited.cards[:] = [{"slug": "b", "body": "two!"}, {"slug": "c", "body": "three"}]
    assert recorded(edited) == [Op("remove", "/cards/0"), splice("/cards/0/body", 3, 0, "!")]
