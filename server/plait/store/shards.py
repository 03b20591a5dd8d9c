"""Which shard a thread belongs to, and which of a store's files keeps the shard. Stored threads depend on both."""

from functools import lru_cache
from hashlib import blake2b
from typing import Final

from plait.store.thread_rows import ThreadKey

__all__ = ["SHARDS", "find_file", "find_shard"]

SHARDS: Final = 1024
"""The number of shards of every store."""

# The number of threads whose shards are kept, as each write needs one, and a hash takes longer than the rest of it.
_MOST_KEPT: Final = 4096


@lru_cache(_MOST_KEPT)
def find_shard(key: ThreadKey) -> int:
    """Return the shard of a thread. Names that a store cannot keep have one, too."""
    kind, name = (part.encode(errors="surrogatepass") for part in key)
    return int.from_bytes(blake2b(b"%d %b%b" % (len(kind), kind, name), digest_size=8).digest()) % SHARDS


def find_file(key: ThreadKey, count: int) -> int:
    """Return the number of the file that keeps a thread, in a store of `count` files."""
    return find_shard(key) % count if count > 1 else 0
