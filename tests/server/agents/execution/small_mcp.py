"""A server of MCP over stdio that starts at once, without the reference implementation, and behaves badly if asked."""

import itertools
import json
import os
import subprocess
import sys
import time
from typing import Any

__all__ = ["LONG", "answer_http"]

LONG = ["long_" + "x" * 100 + end for end in ("a", "b")]
"""The names of two tools of the odd server."""

_GOOD = {"inputSchema": {"type": "object"}}
_ODD = [
    {"name": "without a schema"},
    {"name": "text", "inputSchema": {"type": "string"}},
    {"name": "list", "inputSchema": {"type": "object", "properties": []}},
    {"name": 7, **_GOOD},
    "not a tool",
    *({"name": name, **_GOOD} for name in (*LONG, "pi.d", "pi/d")),
]


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            version, info = params["protocolVersion"], {"name": "small", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            names = ("pid", "pour", "die", "hang", "babble", "fork", "ping", "draw")
            tools = [*(_ODD if "odd" in sys.argv else ()), *({"name": name, **_GOOD} for name in names)]
            tools += [{"name": "x" * 5_000_000, **_GOOD}] * ("large" in sys.argv)
            return {"tools": tools + [{"name": "x", **_GOOD}] * 2_001 * ("many" in sys.argv)}
        case _ if params["name"] == "draw":  # One file is not base64, and the other one has no type.
            images = [("image/png", "x"), ("a\r\nb", "QUJD")]
            found = [{"type": "image", "mimeType": mime, "data": data} for mime, data in images]
            return {"content": [{"type": "text", "text": "Two dots."}, *found]}
        case _:
            return {"content": [{"type": "text", "text": call(params["name"])}]}


def call(name: str) -> str:
    match name:
        case _ if name in (*LONG, "pi.d", "pi/d"):
            return f"It is {name}."
        case "pour":
            return "x" * 10_000_000
        case "die":
            os._exit(1)
        case "hang":
            while True:
                time.sleep(60)
        case "ping":  # Without end, and without a look at the answers.
            for number in itertools.count():
                sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"}) + "\n")
        case "fork":
            return str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
        case "babble":
            sys.stdout.write("Listening …\n{}\n")
            sys.stderr.write("What a day!\n")
    return str(os.getpid())


def answer_request(given: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"jsonrpc": "2.0", "id": given["id"]}
    if given["method"] == "server/discover":  # Of a later version of MCP.
        return {**found, "error": {"code": -32601, "message": "Method not found"}}
    return {**found, "result": answer(given["method"], given.get("params") or {})}


async def answer_http(scope: Any, receive: Any, send: Any) -> None:
    """Answer over HTTP: an ASGI application."""
    if scope["type"] != "http":
        return
    body = b""
    while (message := await receive()).get("more_body"):
        body += message["body"]
    given = json.loads((body + message["body"]) or b"{}")
    status, answer = (200, answer_request(given)) if "id" in given else (202 if given else 405, {})
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


if __name__ == "__main__":
    if "deaf" in sys.argv:
        while True:
            time.sleep(60)
    for line in sys.stdin:
        given = json.loads(line)
        if "id" in given:
            sys.stdout.write(json.dumps(answer_request(given)) + "\n")
            sys.stdout.flush()
