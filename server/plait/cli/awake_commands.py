"""`plait threads awake` and `plait threads kick`: ask a running server."""

import os
import sys
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import msgspec
from cyclopts import Parameter

from plait.cli.options import fail
from plait.node.awake import AwakeReport
from plait.spelling import count
from plait.web.operators import Kick, Kicked

__all__ = ["Url", "ask_server", "awake", "kick", "print_table"]

T = TypeVar("T")

Url = Annotated[str, Parameter(name="URL", help="The server, or one of its workers or nodes.")]

# Seconds for an answer; workers and nodes have 2 seconds for theirs.
_PATIENCE: Final = 10.0
_HEAD: Final = ("thread", "sockets", "queue", "seconds", "turn")


def awake(
    url: Url = "http://localhost:8000",
    *,
    json: Annotated[bool, Parameter(help="Print JSON.", negative="")] = False,
) -> None:
    """List the awake threads of a running server, the busiest first: sockets, waiting turns, and the turn that runs.

    PLAIT_OPERATOR_TOKEN is the server's operator_token.
    """
    found = ask_server(url, "awake", AwakeReport)
    if json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    rows = [
        _HEAD,
        *(
            (
                each.thread,
                str(each.sockets),
                str(each.queue),
                f"{each.seconds:.3f}" if each.turn else "",
                each.turn or "",
            )
            for each in found.busiest
        ),
    ]
    print_table(rows)
    print(f"{count(found.threads, 'thread')} awake, {count(found.sockets, 'socket')}")
    if found.silent:
        print(f"plait: {found.silent} of its workers or nodes did not answer", file=sys.stderr)
        raise SystemExit(1)


def kick(
    url: Url = "http://localhost:8000",
    *,
    user: Annotated[str | None, Parameter(help="Close the sockets and streams of this user.")] = None,
    thread: Annotated[str | None, Parameter(help="Close the sockets of this thread, given as kind/name.")] = None,
) -> None:
    """Close the sockets of one user or one thread of a running server. Clients may connect again.

    PLAIT_OPERATOR_TOKEN is the server's operator_token.
    """
    if (user is None) == (thread is None):
        fail("name either --user or --thread")
    kicked = ask_server(url, "kick", Kicked, Kick(user, thread))
    print(f"{count(kicked.closed, 'socket')} closed")


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of equally many cells, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def ask_server(url: str, path: str, answer: type[T], body: Any = None) -> T:
    """Return the answer of a server, or fail."""
    token = os.environ.get("PLAIT_OPERATOR_TOKEN", "")
    if not token:
        fail("set PLAIT_OPERATOR_TOKEN to the operator_token of the server")
    if not url.startswith(("http://", "https://")):
        fail(f"{url!r} is not the URL of a server, such as http://localhost:8000")
    data = None if body is None else msgspec.json.encode(body)
    request = Request(f"{url.rstrip('/')}/operator/{path}", data, {"Authorization": f"Bearer {token}"})
    try:
        with urlopen(request, timeout=_PATIENCE) as response:
            return msgspec.json.decode(response.read(), type=answer)
    except HTTPError as error:
        fail(f"{url} refused: {_explain(error)}")
    except (URLError, OSError) as error:
        fail(f"{url} does not answer: {error.reason if isinstance(error, URLError) else error}")
    except msgspec.DecodeError:
        fail(f"{url} is no plait server")


def _explain(error: HTTPError) -> str:
    if error.code == HTTPStatus.NOT_FOUND:
        return "it has no operator_token, or is no plait server"
    try:
        return str(msgspec.json.decode(error.read())["error"]["message"])
    except (msgspec.DecodeError, LookupError, TypeError):
        return f"{error.code} {error.reason}"
