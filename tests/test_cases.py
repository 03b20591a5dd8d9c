"""A test that plays cases plays each of them, and says which ones failed."""

import inspect

import pytest
from tests.cases import each_case


async def test_each_case_is_played_and_an_error_names_its_own() -> None:
    played = []

    @each_case("b", [1, pytest.param(2, id="two")])
    @each_case(("a", "c"), [("x", None), ("y", [0])])
    async def fail_once(fixture: str, a: str, b: int, c: object) -> None:
        played.append((fixture, a, b, c))
        assert (a, b) != ("y", 1)

    assert list(inspect.signature(fail_once).parameters) == ["fixture"]
    with pytest.raises(AssertionError) as caught:
        await fail_once(fixture="one")
    assert played == [("one", "x", 1, None), ("one", "y", 1, [0]), ("one", "x", 2, None), ("one", "y", 2, [0])]
    assert caught.value.__notes__ == ["with a='y', c=[0]", "with b=1"]


def test_all_cases_that_fail_are_told() -> None:
    @each_case("n", range(4))
    def fail_twice(n: int) -> None:
        if n == 1:
            raise LookupError
        if n == 2:
            pytest.fail("two")

    with pytest.raises(BaseExceptionGroup, match="2 of 4 cases fail") as caught:
        fail_twice()
    assert [each.__notes__ for each in caught.value.exceptions] == [["with n=1"], ["with n=2"]]


def test_a_test_without_a_case_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="no case"):
        each_case("n", [])
