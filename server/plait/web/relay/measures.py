"""Measures of a node's cluster and links, for metrics."""

from collections.abc import Mapping

from plait.cluster.cluster_owners import ClusterOwners
from plait.web.relay.gateway import RelayedSocket
from plait.web.server_context import ServerContext

__all__ = ["measure"]


def measure(context: ServerContext) -> Mapping[str, float]:
    """Return the current values of the metrics. Any OS thread may call this function."""
    links, owners = context.links, context.owners
    found: dict[str, float] = {
        "plait_links": len(links.linked),
        "plait_link_bytes_sent_total": links.count("bytes_sent"),
        "plait_link_bytes_received_total": links.count("bytes_received"),
        "plait_relayed_sockets": context.relays.count(RelayedSocket),
        "plait_held": links.held,
    }
    if isinstance(owners, ClusterOwners):
        found |= owners.measure()
    return found
