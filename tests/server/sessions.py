"""Where tests make their sessions: a connection to a thread and what serves it, of either protocol."""

from plait.actor.actor import Actor
from plait.actor.connection import Connection, Principal, Rights, Wire
from plait.actor.transport import Transport
from plait.errors import Unauthenticated
from plait.session.cloudflare.departures import Departures
from plait.session.cloudflare.session import CLOUDFLARE, CloudflareSession
from plait.session.native.follower import PLAIT
from plait.session.native.session import PlaitSession
from plait.session.native.tokens import Renew, Tokens
from plait_schemas.messages import SUBPROTOCOL, Join

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


def make_native(
    actor: Actor,
    join: Join,
    transport: Transport,
    *,
    principal: Principal | None = None,
    renew: Renew = nobody,
    arrival: int = 0,
) -> tuple[Connection, PlaitSession]:
    """Return a connection of the native protocol, and its session, which is to be prepared."""
    connection = make_connection(
        actor, actor.connection_id(SUBPROTOCOL, principal, join.client), transport, principal=principal
    )
    tokens = Tokens(connection, transport.send, renew)
    return connection, PlaitSession(actor, connection, transport, join, tokens, arrival=arrival)
