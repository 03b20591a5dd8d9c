"""Finds the directory of the engine of a store."""

from plait.cluster.directory import Directory
from plait.store.nats.url import NatsUrl
from plait.store.postgres.url import PostgresUrl
from plait.store.protocol import Store

__all__ = ["find_directory"]


def find_directory(store: Store) -> Directory | None:
    """Return the directory that the engine of a shared store keeps; None if it keeps none."""
    url = getattr(store, "url", None)
    if isinstance(url, PostgresUrl):
        from plait.cluster.postgres import PostgresDirectory  # noqa: PLC0415

        return PostgresDirectory(url)
    if isinstance(url, NatsUrl):
        from plait.cluster.nats import NatsDirectory  # noqa: PLC0415

        return NatsDirectory(url)
    return None
