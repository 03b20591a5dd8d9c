"""Only what may be the same element is taken for changed."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait_client import align
from plait_client.align import difference
from plait_schemas.patch import Op, apply

scalars = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", 1.0])
elements = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["id", "a", "b/c", "0"]), inner),
    max_leaves=8,
)


@given(elements, elements)
def test_the_operations_lead_from_the_one_to_the_other(before: Any, after: Any) -> None:
    kept = copy.deepcopy(before)
    assert apply(before, difference(before, after)) == after
    assert before == kept


@given(elements)
def test_nothing_leads_to_an_equal_state(state: Any) -> None:
    assert difference(state, copy.deepcopy(state)) == []


def remove(*indices: int) -> list[Op]:
    return [Op("remove", f"/{index}") for index in indices]


@pytest.mark.parametrize(
    ("before", "after", "ops"),
    [
        pytest.param("abcde", "bd", remove(4, 2, 0), id="several are gone"),
        pytest.param("abc", "xabyc", [Op("add", "/2", "y"), Op("add", "/0", "x")], id="several have come"),
        pytest.param("abc", "bca", [Op("add", "/3", "a"), *remove(0)], id="one has moved"),
        pytest.param("ab", "xb", [*remove(0), Op("add", "/0", "x")], id="another text is another element"),
        pytest.param([True], [1], [*remove(0), Op("add", "/0", 1)], id="true is not 1"),
    ],
)
def test_elements_are_found_where_they_have_come_to_be(before: Any, after: Any, ops: list[Op]) -> None:
    assert difference(list(before), list(after)) == ops


def test_an_element_with_the_same_id_has_changed_and_one_with_another_is_another() -> None:
    before = [{"id": 1, "t": "a"}, {"id": 2, "t": "b"}]
    assert difference(before, [{"id": 1, "t": "A"}, {"id": 3, "t": "b"}]) == [
        *remove(1),
        Op("add", "/1", {"id": 3, "t": "b"}),
        Op("replace", "/0/t", "A"),
    ]


def test_elements_without_an_id_that_differ_in_one_place_are_one_that_has_changed() -> None:
    assert difference([{"t": "a"}, [1]], [{"t": "A"}, [2]]) == [
        Op("replace", "/0/t", "A"),
        Op("remove", "/1/0"),
        Op("add", "/1/0", 2),
    ]


def test_the_order_of_keys_makes_no_other_element() -> None:
    before = [{"x": 1, "y": 2}, {"x": 3, "y": 4}]
    assert difference(before, [{"y": 4, "x": 3}]) == remove(0)


def test_what_is_too_long_to_compare_is_compared_place_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(align, "_MOST_STEPS", 8)
    assert difference(list("abc"), list("xbz")) == [
        *remove(0),
        Op("add", "/0", "x"),
        *remove(2),
        Op("add", "/2", "z"),
    ]


def test_an_element_is_found_again_by_its_id_where_others_were_put_in_front_of_it() -> None:
    before = [{"id": 1, "t": "a"}, {"id": 2, "t": "b"}]
    after = [{"id": 0}, {"id": 9}, {"id": 1, "t": "A"}, {"id": 2, "t": "B"}]
    assert difference(before, after) == [
        Op("replace", "/1/t", "B"),
        Op("replace", "/0/t", "A"),
        Op("add", "/0", {"id": 0}),
        Op("add", "/1", {"id": 9}),
    ]
