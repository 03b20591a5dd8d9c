"""Spreads shards over nodes by rendezvous hashing (Thaler and Ravishankar, 1998).

Each node that joins or leaves moves only its own share of the shards, and every node finds the same owners.
"""

from collections.abc import Collection
from functools import lru_cache
from hashlib import blake2b

__all__ = ["find_winner"]


def find_winner(shard: int, nodes: Collection[str]) -> str | None:
    """Return the node that should own a shard: the one with the highest hash; None without nodes."""
    return max(nodes, key=lambda node: (_weigh(shard, node), node), default=None)


@lru_cache(maxsize=1 << 17)
def _weigh(shard: int, node: str) -> int:
    return int.from_bytes(blake2b(f"{shard} {node}".encode(), digest_size=8).digest())
