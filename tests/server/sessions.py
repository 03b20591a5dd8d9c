"""Where tests make their sessions: a connection to a thread and what serves it, of either protocol."""

from plait.actor.actor import Actor
from plait.actor.connection import Connection, Rights, Wire
from plait.actor.transport import Transport
from plait.errors import Unauthenticated
from plait.session.cloudflare.cloudflare_session import CLOUDFLARE, CloudflareSession
from plait.session.cloudflare.departures import Departures
from plait.session.leases import Leases
from plait.session.native.follower import PLAIT
from plait.session.native.joining import Joining
from plait.session.native.tokens import Renew, Tokens
from plait.state.principal import Principal
from plait_schemas.messages import Join

__all__ = ["make_cloudflare", "make_connection", "make_native", "nobody"]


async def nobody(token: str) -> Rights:
    """Refuse every token."""
    raise Unauthenticated("this server wants to know who you are")


def make_connection(
    actor: Actor,
    id: str,
    transport: Transport,
    *,
    principal: Principal | None = None,
    wire: Wire = PLAIT,
    arrival: int | None = None,
) -> Connection:
    """Return a connection to a thread, which the thread does not know yet."""
    return actor.sockets.make_connection(id, transport, rights=Rights(principal), wire=wire, arrival=arrival)


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
    actor: Actor, connection: Connection, transport: Transport, join: Join, *, renew: Renew = nobody
) -> Joining:
    """Return the join of a connection of the native protocol, which is to be opened or closed."""
    lease = Leases().begin()
    lease.principal = connection.principal
    lease.open(connection.close, connection_id=connection.id)
    tokens = Tokens(actor, connection, transport, lease, renew=renew)
    joining = Joining(actor, connection, transport, join, tokens=tokens)
    await joining.prepare()
    return joining
