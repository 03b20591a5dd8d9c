"""Close codes."""

from tests.cases import each_case

from plait_schemas import codes


@each_case("code", [codes.BAD_FRAME, codes.UNAUTHENTICATED, codes.FORBIDDEN, codes.NOT_FOUND, 1008, 4499])
def test_a_client_that_was_refused_does_not_come_again(code: int) -> None:
    assert codes.is_final(code)


@each_case(
    "code", [codes.GOING_AWAY, codes.INTERNAL_ERROR, codes.TRY_AGAIN_LATER, 1000, 1006, 1009, 3999, 4399, 4500, 5000]
)
def test_a_client_that_was_cut_off_comes_again(code: int) -> None:
    assert not codes.is_final(code)
