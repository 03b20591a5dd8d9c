"""Which thread a URL names."""

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from plait.errors import NotFound
from plait.web.thread_urls import is_run_path, read_address, read_run


def scope(raw_path: str, *, root_path: str = "", keeps_raw: bool = True) -> dict[str, Any]:
    """Return an ASGI scope; `keeps_raw` is what servers do that tell the path as it was sent."""
    return {
        "type": "http",
        "path": quote(raw_path, safe="/%") if keeps_raw else raw_path,
        "root_path": root_path,
        **({"raw_path": raw_path.encode()} if keeps_raw else {}),
    }


@each_case(
    ("path", "kind", "name", "rest"),
    [
        ("/threads/game-room/room-1", "game-room", "room-1", ""),
        ("/threads/game-room/room-1/", "game-room", "room-1", ""),
        ("/threads/game-room/room-1/rpc/move", "game-room", "room-1", "rpc/move"),
        ("/threads/game-room/room%201", "game-room", "room 1", ""),
        ("/threads/game-room/a%2Fb/c%2Fd", "game-room", "a/b", "c%2Fd"),
        ("/threads/game-room/%F0%9F%94%91", "game-room", "🔑", ""),
        ("/threads/game-room/%252F", "game-room", "%2F", ""),
        ("/threads/game-room/a+b", "game-room", "a+b", ""),
        ("/threads/game-room/threads", "game-room", "threads", ""),
        ("/threads/game-room/room?_pk=1", "game-room", "room", ""),
        ("//agents/game-room/room", "game-room", "room", ""),
        ("///agents//game-room///room//", "game-room", "room", ""),
        ("/threads//game-room/room//rpc//move/", "game-room", "room", "rpc/move"),
        ("/threads/game-room/%2F/%2F", "game-room", "/", "%2F"),
    ],
)
def test_a_path_names_a_kind_a_thread_and_the_rest(path: str, kind: str, name: str, rest: str) -> None:
    key, found = read_address(scope(path))
    assert (key.kind, key.name, found) == (kind, name, rest)


@each_case(
    "path",
    [
        "/threads",
        "/threads/",
        "/threads/game-room",
        "/threads/game-room/",
        "/threads//room",
        "/threads/game-room//",
        "//game-room/room/threads",
        "/%2Fthreads/game-room/room",
        "/threads/game-room/%00",
        "/threads/game-room/a%0Ab",
        "/threads/game-room/%FF",
        "/threads/%FF/room",
        "/threads/game-room/" + "x" * 257,
    ],
)
def test_a_path_that_names_no_thread_is_not_found(path: str) -> None:
    with pytest.raises(NotFound):
        read_address(scope(path))


def test_a_thread_is_found_below_wherever_the_app_is_mounted() -> None:
    for root in ("", "/api/v1", "/threads", "/my app", "/größe"):
        for prefix in ("threads", "agents"):
            address = read_address(scope(f"{quote(root)}/{prefix}/room/one", root_path=root))
            assert address.key == ("room", "one")


@each_case("path", ["/other/room/one", "/Threads/room/one", "/x/threads/room/one", "//x/threads/room/one"])
def test_a_path_below_another_prefix_is_not_found(path: str) -> None:
    with pytest.raises(NotFound):
        read_address(scope(path))


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=256)


@given(NAMES)
def test_any_name_that_is_percent_encoded_is_read_back(name: str) -> None:
    address = read_address(scope(f"/threads/room/{quote(name, safe='')}"))
    assert address == (("room", name), "")


@given(NAMES.filter(lambda name: "/" not in name))
def test_a_server_that_tells_only_the_decoded_path_does_for_names_without_a_slash(name: str) -> None:
    address = read_address(scope(f"/threads/room/{name}", keeps_raw=False))
    assert address.key == ("room", name)


@each_case(
    ("path", "root_path", "found"),
    [
        ("/run/support", "", ("support", "")),
        ("//run//support/", "", ("support", "")),
        ("/run/support/interrupt", "", ("support", "interrupt")),
        ("/run/a%2Fb", "", ("a/b", "")),
        ("/live/run/support", "/live", ("support", "")),
    ],
)
def test_the_url_of_an_agent_names_it(path: str, root_path: str, found: tuple[str, str]) -> None:
    asked = scope(path, root_path=root_path)
    assert is_run_path(asked)
    assert read_run(asked) == found


@each_case("path", ["/", "/run", "/runs/support", "/threads/run/support", "/a/run/support"])
def test_other_urls_name_no_agent(path: str) -> None:
    assert not is_run_path(scope(path))
    with pytest.raises(NotFound):
        read_run(scope(path))
