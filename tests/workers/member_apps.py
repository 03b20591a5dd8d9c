"""The app whose users are disconnected: by default on a file, else on the store of PLAIT_STORE."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from plait import Plait, Principal, Thread

__all__ = ["app"]


class Room(Thread[dict[str, int]]):
    """A room for users."""

    initial_state = {}  # noqa: RUF012


def authenticate(request: Request) -> Principal:
    """Return the user whom the client says it is."""
    return Principal(request.query_params.get("user") or request.headers["authorization"].removeprefix("Bearer "))


async def disconnect(request: Request) -> JSONResponse:
    """Disconnect a user."""
    return JSONResponse(await app.disconnect(request.path_params["user"]))


app = Plait(Room, store="sqlite:///members.db", authenticate=authenticate)
app.mount("/disconnect", Starlette(routes=[Route("/{user}", disconnect, methods=["POST"])]))
