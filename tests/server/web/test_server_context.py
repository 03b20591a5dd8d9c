"""Answers to requests that fail."""

from tests.cases import each_case

from plait.errors import Busy, PlaitError, StoreError, TooMany, Unavailable
from plait.web.server_context import error_response


@each_case(
    ("error", "seconds"),
    [
        (Unavailable("closed for an hour", retry_after=3600), "3600"),
        (StoreError("the disk is full"), "1"),
        (TooMany("slow down", retry_after=0.2), "1"),
        (TooMany("no more", retry_after=float("inf")), None),
        (Busy("it runs"), None),
    ],
)
def test_an_answer_tells_the_seconds_of_its_error_or_else_one_if_the_server_cannot_serve(
    error: PlaitError, seconds: str | None
) -> None:
    assert error_response(error).headers.get("retry-after") == seconds
