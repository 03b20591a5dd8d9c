"""The messages on the page about troubleshooting are those of the code, and its close codes those of the wire."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from tests.cases import each_case
from tests.integration.socket_client import http
from tests.running import running
from tests.test_docs import PAGES, ROOT

from plait import MemoryStore, Plait, PlaitError, Principal, Thread, rpc
from plait_schemas import codes

PAGE: Final = PAGES["troubleshooting"].read_text()
# The rows of the tables, without the heads, each as its cells.
ROWS: Final = [
    [cell.strip() for cell in row.strip("|").split(" | ")]
    for row in re.findall(r"^\|.*\|$", PAGE, re.MULTILINE)
    if not row.startswith(("|---", "| message ", "| code "))
]
# What stands for a part of a message that differs.
GAP: Final = "…"


def find_quotes() -> list[str]:
    """Return the messages that the page quotes."""
    cells = [row[0] for row in ROWS if row[0].startswith("`")]
    return [quote for cell in cells for quote in re.findall(r"`([^`]+)`", cell) if not quote.startswith("/")]


def read_python(path: Path) -> Iterator[str]:
    """Yield the strings of a module, with gaps for what is put in."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.JoinedStr(values):
                yield "".join(str(each.value) if isinstance(each, ast.Constant) else GAP for each in values)
            case ast.Constant(str() as text):
                yield re.sub(r"%[.\d]*[srdgf]|%%", GAP, text)


def read_script(path: Path) -> Iterator[str]:
    """Yield the strings of a module in TypeScript."""
    for quoted in re.findall(r"\"[^\"\n]*\"|`[^`]*`", path.read_text()):
        yield re.sub(r"\$\{[^}]*\}", GAP, quoted[1:-1])


def read_messages() -> str:
    """Return all strings of the server and the clients, one a line."""
    python = [path for folder in ("server/plait", "client/python") for path in (ROOT / folder).rglob("*.py")]
    found = [text for path in python for text in read_python(path)]
    found += [text for path in (ROOT / "client/js/src").glob("*.ts") for text in read_script(path)]
    return "\n".join(text.replace("\n", " ") for text in found)


def test_each_message_is_one_of_the_code() -> None:
    quotes, messages = find_quotes(), read_messages()
    assert len(quotes) > 30
    assert [quote for quote in quotes if not is_quoted(quote, messages)] == []


def is_quoted(quote: str, message: str) -> bool:
    """Return whether a quote is a part of a message, which is a line; its gaps may be any text of the line."""
    parts = [part for part in quote.split(GAP) if part.strip()]
    return re.search(".*".join(map(re.escape, parts)), message) is not None


def test_each_close_code_is_explained() -> None:
    explained = {int(code) for code in re.findall(r"^\| (\d{4})\b", PAGE, re.MULTILINE)}
    own = {getattr(codes, name) for name in codes.__all__ if name != "is_final"}
    assert own - explained == {codes.NOT_FOUND}
    assert f"| {codes.NOT_FOUND}, HTTP 404 |" in PAGE


def test_each_row_says_what_to_do() -> None:
    assert ROWS
    assert [row for row in ROWS if not all((row[0], *row[-2:]))] == []


class Points(msgspec.Struct):
    points: int = 0
    note: str = ""


class Game(Thread[Points]):
    initial_state = Points()
    can_write = ("/note",)

    def validate_state_change(self, next_state: Points, source: Any) -> None:
        if next_state.note == "change":
            self.update("/points", 1)

    @rpc
    def add(self, n: int) -> None:
        raise KeyError(n)

    @rpc
    def hide(self) -> object:
        return object()

    @rpc
    async def change_in_place(self) -> None:
        self.state.points = 9
        await self.set_state(lambda state: state)


def authenticate(request: Any) -> Principal | None:
    return None if "anonymous" in request.query_params else Principal("ada")


def authorize(principal: Any, thread: Any, action: str) -> bool:
    return bool(thread.name != "closed")


class Watched(Game):
    def should_be_readonly(self, connection: Any, request: Any) -> bool:
        return True


RPC: Final = "/threads/game/one/rpc/"
REQUESTS: Final[list[tuple[str, str, Any]]] = [
    ("PUT", "/threads/game/one?anonymous", {}),
    ("PUT", "/threads/game/closed", {}),
    ("PUT", "/threads/gameroom/one", {}),
    ("GET", "/threads/game/new", None),
    ("PUT", "/threads/game/one", {"points": 1}),
    ("PUT", "/threads/game/one", {"pionts": 1}),
    ("PUT", "/threads/watched/one", {"note": "hello"}),
    ("POST", f"{RPC}subtract", {}),
    ("POST", f"{RPC}on_start", {}),
    ("POST", f"{RPC}add", {"args": [1, 2]}),
    ("POST", f"{RPC}add", {"args": [1]}),
    ("POST", f"{RPC}change_in_place", {}),
]
"""Requests that an app refuses, each for another reason."""


def is_explained(message: str) -> bool:
    """Return whether a message that a client got is one that the page quotes."""
    return any(is_quoted(quote, message) for quote in find_quotes() if len(quote.strip(f"{GAP} ")) > 5)


@each_case("request_", REQUESTS)
async def test_the_message_of_a_refusal_is_on_the_page(request_: tuple[str, str, Any]) -> None:
    app = Plait(Game, Watched, store=MemoryStore(), authenticate=authenticate, authorize=authorize)
    method, path, body = request_
    async with running(app) as address, http(address) as web:
        answer = await web.request(method, path, json=body)
    assert answer.status_code >= 400
    assert is_explained(answer.json()["error"]["message"]), answer.text


@pytest.mark.parametrize("headers", [{"Host": "game.example.com"}, {"Origin": "https://elsewhere.example.com"}])
async def test_the_message_about_a_host_or_an_origin_is_on_the_page(headers: dict[str, str]) -> None:
    async with running(Plait(Game, store=MemoryStore())) as address, http(address) as web:
        answer = await web.put("/threads/game/one", json={"note": ""}, headers=headers)
    assert is_explained(answer.json()["error"]["message"]), answer.text


async def test_the_message_about_an_app_without_its_lifespan_is_on_the_page() -> None:
    with pytest.raises((RuntimeError, PlaitError)) as caught:
        await Plait(Game, store=MemoryStore()).thread(Game, "one").state()
    assert is_explained(str(caught.value))
