"""How paths with parameters are read, ordered and matched."""

from typing import Any
from uuid import UUID

import pytest
from tests.cases import each_case

from plait.actor.url_patterns import UrlPattern, decode_segments
from plait.errors import NotFound

ID = "6f1d2c3b-8a4e-4f5d-9b6a-0c1d2e3f4a5b"


@each_case(
    ("pattern", "rest", "values"),
    [
        ("/", "", {}),
        ("/report", "report", {}),
        ("/report/", "report", {}),
        ("/report/{year:int}", "report/2024", {"year": 2024}),
        ("/report/{year:int}", "report/newest", None),
        ("/report/{year:int}", "report", None),
        ("/report/{year:int}", "report/1/2", None),
        ("/{name}", "Ada%20L", {"name": "Ada L"}),
        ("/{name}", "a%2Fb", {"name": "a/b"}),
        ("/{a}/{b}", "a%2Fb", None),
        ("/größe/{name}", "gr%C3%B6%C3%9Fe/x", {"name": "x"}),
        ("/{x:float}", "1.5", {"x": 1.5}),
        ("/{id:uuid}", ID, {"id": UUID(ID)}),
        ("/report-{year:int}.pdf", "report-7.pdf", {"year": 7}),
        ("/report-{year:int}.pdf", "report-7xpdf", None),
        ("/files/{rest:path}", "files/a/b%2Fc", {"rest": "a/b/c"}),
        ("/files/{rest:path}", "files", {"rest": ""}),
        ("/files/{rest:path}", "filesystem", None),
        ("/{rest:path}", "", {"rest": ""}),
        ("/{n:int}", "9" * 5_000, None),
        ("/{x:float}", "9" * 5_000, None),
    ],
)
def test_a_pattern_matches_a_path_segment_by_segment(pattern: str, rest: str, values: dict[str, Any] | None) -> None:
    assert UrlPattern(pattern).match(decode_segments(rest)) == values


@each_case("rest", ["%FF", "a%00b"])
def test_a_path_that_is_no_text_is_not_found(rest: str) -> None:
    with pytest.raises(NotFound):
        decode_segments(rest)


def test_the_longer_text_around_a_parameter_comes_first() -> None:
    texts = ["/v{x:int}.json", "/{x:int}", "/{x}.min.json", "/{x}.json", "/{x}"]
    patterns = [UrlPattern(text) for text in reversed(texts)]
    assert [each.text for each in sorted(patterns, key=lambda each: each.rank)] == texts


def test_plain_text_comes_before_parameters_and_the_rest_of_a_path_last() -> None:
    texts = ["/a", "/a/new", "/a/{x:int}", "/a/{x:float}", "/a/{x}", "/a/{rest:path}", "/{x}/new", "/{rest:path}"]
    patterns = [UrlPattern(text) for text in reversed(texts)]
    assert [each.text for each in sorted(patterns, key=lambda each: each.rank)] == texts


@each_case(
    ("pattern", "other", "is_covered"),
    [
        ("/a/{x}", "/a/{y}", True),
        ("/a/{x}", "/a/b", True),
        ("/a/{x}", "/a/{y:int}", True),
        ("/a/{x:int}", "/a/{y}", False),
        ("/a/b", "/a/{x}", False),
        ("/a/{x}", "/a", False),
        ("/a/{rest:path}", "/a", True),
        ("/a/{rest:path}", "/a/b/c", True),
        ("/a/{rest:path}", "/b", False),
        ("/{x}", "/{rest:path}", False),
        ("/", "/", True),
        ("/", "/{rest:path}", False),
    ],
)
def test_a_pattern_covers_another_if_it_matches_whatever_that_does(pattern: str, other: str, is_covered: bool) -> None:
    assert UrlPattern(pattern).covers(UrlPattern(other)) is is_covered


@each_case(
    "text",
    [
        "report",
        "/{x",
        "/x}",
        "/{1x}",
        "/{x:date}",
        "/{x}/{x}",
        "/{rest:path}/a",
        "/a{rest:path}",
        "/{x:}",
        "/{x}{y:int}",
    ],
)
def test_a_pattern_that_is_not_written_as_one_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the path"):
        UrlPattern(text)


def test_a_segment_has_at_most_one_parameter() -> None:
    with pytest.raises(ValueError, match=r"'\{name\}-\{size\}\.png' has more than one parameter"):
        UrlPattern("/img/{name}-{size}.png")
