"""The handlers of benchmarks/agents_app.py without threads and state: `python -m benchmarks.agents_bare PORT`."""

import sys

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["app", "main"]


class Step(msgspec.Struct):
    """By how much to count."""

    by: int


_decode = msgspec.json.Decoder(Step).decode


async def step(request: Request) -> Response:
    """Check the input, add, and answer."""
    output = _decode(await request.body()).by + 1
    return Response(msgspec.json.encode(output), media_type="application/json")


app = Starlette(routes=[Route(f"/run/{name}", step, methods=["POST"]) for name in ("none", "put", "add")])


def main() -> None:
    """Serve until ended."""
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False, loop="uvloop", http="httptools")


if __name__ == "__main__":
    main()
