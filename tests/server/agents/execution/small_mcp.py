"""A server of MCP over stdio that starts at once, without the reference implementation, and behaves badly if asked."""

import itertools
import json
import os
import subprocess
import sys
import time
from typing import Any

__all__: list[str] = []


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            version, info = params["protocolVersion"], {"name": "small", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            names = ("pid", "pour", "die", "hang", "babble", "fork", "ping", "draw")
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
        case _ if params["name"] == "draw":  # One file is not base64, and the other one has no type.
            images = [("image/png", "x"), ("a\r\nb", "QUJD")]
            found = [{"type": "image", "mimeType": mime, "data": data} for mime, data in images]
            return {"content": [{"type": "text", "text": "Two dots."}, *found]}
        case _:
            return {"content": [{"type": "text", "text": call(params["name"])}]}


def call(name: str) -> str:
    match name:
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


if __name__ == "__main__":
    if "deaf" in sys.argv:
        while True:
            time.sleep(60)
    for line in sys.stdin:
        given = json.loads(line)
        if "id" in given:
            found: dict[str, Any] = {"jsonrpc": "2.0", "id": given["id"]}
            if given["method"] == "server/discover":  # Of a later version of MCP.
                found["error"] = {"code": -32601, "message": "Method not found"}
            else:
                found["result"] = answer(given["method"], given.get("params") or {})
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
