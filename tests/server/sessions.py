"""Where tests make their sessions: a connection to a thread and what serves it, of either protocol."""

from tests.server.fakes import FakeTransport

from plait.actor.actor import Actor
from plait.actor.connection import Connection, Principal, Rights, Wire
from plait.actor.transport import Transport
from plait.errors import Unauthenticated
from plait.session.cloudflare.departures import Departures
from plait.session.cloudflare.session import CLOUDFLARE, CloudflareSession
from plait.session.native.follower import PLAIT
from plait.session.native.joining import Joining
from plait.session.native.tokens import Renew, Tokens
from plait_schemas.messages import Join

__all__ = ["make_cloudflare", "make_connection", "make_native", "nobody"]


async def nobody(token: str) -> Rights:
    """Refuse every token."""
    raise Unauthenticated("this server wants to know who you are")


def make_connection(
    actor: Actor, id: str, transport: Transport, *, principal: Principal | None = None, wire: Wire = PLAIT
) -> Connection:
    """Return a connection to a thread, which the thread does not know yet."""
    return Connection(id, transport, actor.pipeline.after, rights=Rights(principal), wire=wire)


def make_cloudflare(
    actor: Actor,
    id: str,
    transport: Transport,
    *,
    principal: Principal | None = None,
    departures: Departures | None = None,
) -> tuple[Connection, CloudflareSession]:
    """Return a connection of the Cloudflare protocol, and its session."""
    connection = make_connection(actor, id, transport, principal=principal, wire=CLOUDFLARE)
    return connection, CloudflareSession(actor, connection, transport, departures or Departures())


async def make_native(
    actor: Actor,
    connection: Connection,
    transport: FakeTransport,
    join: Join,
    *,
    renew: Renew = nobody,
    arrival: int = 0,
) -> Joining:
    """Return the join of a connection of the native protocol, which is to be opened or closed."""
    tokens = Tokens(connection, transport.send, renew)
    return await Joining.prepare(
        actor, connection, transport, join, tokens=tokens, attach=transport.attach, arrival=arrival
    )
