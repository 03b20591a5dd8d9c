"""What stands of a log."""

from collections.abc import Iterable

import pytest
from tests.cases import each_case

from plait.errors import Conflict
from plait.state.budget import Budget
from plait.state.undone import drop_undone
from plait.store.thread_rows import ChangeRow
from plait_schemas.codec import encode_json
from plait_schemas.patch import Op


def log(*changes: tuple[str, list[Op]]) -> Iterable[ChangeRow]:
    for version, (source, ops) in enumerate(changes, 1):
        yield ChangeRow(version, encode_json(ops), source, 0)


def test_what_was_taken_back_is_left_out_and_the_rest_is_as_it_would_be_without_it() -> None:
    rows = log(
        ("bob", [Op("add", "/0", "bob's")]),
        ("eve", [Op("add", "/1", "eve's")]),
        ("undo 1 bob", [Op("remove", "/0")]),
    )
    steps = drop_undone([], rows, Budget())
    assert [(step.version, step.source, step.ops) for step in steps] == [(2, "eve", [Op("add", "/0", "eve's")])]


def test_what_was_taken_back_by_other_operations_than_would_lead_back_stands() -> None:
    rows = log(
        ("bob", [Op("add", "/0", "one"), Op("add", "/1", "two")]),
        ("eve", [Op("add", "/2", "eve's")]),
        ("undo 1 bob", [Op("remove", "/1")]),
    )
    assert [step.version for step in drop_undone([], rows, Budget())] == [1, 2, 3]


@each_case(("length", "count", "error"), [(10, 400, None), (10_000, 400, None), (500_000, 100, Conflict)])
def test_a_long_list_counts_for_each_change_of_it_that_was_taken_back(
    length: int, count: int, error: type[Exception] | None
) -> None:
    changes: list[tuple[str, list[Op]]] = []
    for n in range(1, count + 1):
        changes += [
            ("bob", [Op("replace", "/list/0", n)]),
            ("eve", [Op("replace", "/n", n)]),
            (f"undo {3 * n - 2} bob", [Op("replace", "/list/0", 0)]),
        ]
    document = {"list": [0] * length, "n": 0}
    if error is None:
        assert [step.source for step in drop_undone(document, log(*changes), Budget())] == ["eve"] * count
    else:
        with pytest.raises(error, match="too many changes"):
            drop_undone(document, log(*changes), Budget())
