"""A primary of Redis, its replica, and Sentinels that promote it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from tests.redis import Redis

__all__ = ["Sentinels"]


class Sentinels:
    """A primary, its replica, and three Sentinels."""

    def __init__(self, primary: Redis, replica: Redis, sentinels: list[Redis]) -> None:
        self.primary = primary
        self.replica = replica
        self.sentinels = sentinels

    @classmethod
    @contextmanager
    def run(cls, folder: Path, make: Callable[[Path], Redis] = Redis) -> Iterator[Self]:
        """Run them, until each Sentinel knows the others and the replica."""
        with ExitStack() as stack:
            primary = stack.enter_context(make(folder / "primary"))
            replica = stack.enter_context(primary.replica(folder / "replica"))
            sentinels = list[Redis]()
            for number in range(3):
                settings = folder / f"sentinel{number}.conf"
                settings.write_text(
                    f"sentinel monitor mymaster 127.0.0.1 {primary.port} 2\n"
                    "sentinel down-after-milliseconds mymaster 300\nsentinel failover-timeout mymaster 3000\n"
                )
                sentinels.append(stack.enter_context(Redis.sentinel(folder / f"sentinel{number}", settings)))
            found = cls(primary, replica, sentinels)
            for each in sentinels:
                each.until(lambda each=each: found._is_known(each))  # type: ignore[misc]
            yield found

    @property
    def url(self) -> str:
        """The URL of a store; at the first port there is no Sentinel."""
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"redis+sentinel://127.0.0.1:1,{hosts}/mymaster"

    def find_primary(self) -> int:
        """Return the port of the primary, as a Sentinel has it."""
        return int(self.sentinels[0].execute("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")[1])

    def fail_over(self) -> None:
        """Have the Sentinels promote the replica, as for a planned change."""
        self.sentinels[0].execute("SENTINEL", "FAILOVER", "mymaster")

    def _is_known(self, sentinel: Redis) -> bool:
        others = sentinel.execute("SENTINEL", "SENTINELS", "mymaster")
        return len(others) == 2 and f"{self.replica.port}" in str(sentinel.execute("SENTINEL", "REPLICAS", "mymaster"))
