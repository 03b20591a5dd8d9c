"""Faults of a PostgreSQL server below a cluster: its standby is promoted, its disk is full, statements are late."""

import asyncio
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.cluster.faults import Hurt
from tests.postgres import Postgres, new_schema
from tests.server.store.cutting_proxy import CuttingProxy

__all__ = [
    "SMALL",
    "Pair",
    "fill_disk",
    "late_statements",
    "promote",
    "promote_beside",
    "promote_with_loss",
    "small_disk",
]

# A server on a small disk keeps little of its log, and says what it cannot write.
SMALL: Final = ("--max_wal_size=64MB", "--min_wal_size=32MB", "--log_min_messages=error")


class Pair:
    """A primary server and its standby. After each failover the standby is the primary, and has a new standby."""

    def __init__(self, folder: Path, *, is_synchronous: bool) -> None:
        self._folder = folder
        self._is_synchronous = is_synchronous
        self._stack = ExitStack()
        self._count = 1
        self.primary = Postgres(folder / "0")
        self.standby = self.primary
        self.ports: tuple[int, ...] = ()

    def __enter__(self) -> "Pair":
        self._stack.enter_context(self.primary)
        self.standby = self._stack.enter_context(self.primary.replica(self._folder / "1"))
        self.ports = (self.primary.port, self.standby.port)
        if self._is_synchronous:
            self.primary.require_standby()
            self.standby.require_standby()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def make_store(self, options: str = "") -> str:
        """Return the URL of an empty store on whichever server can be written."""
        options += "&standby=synchronous" if self._is_synchronous else ""
        return new_schema(
            f"postgresql://plait@{','.join(f'127.0.0.1:{port}' for port in self.ports)}/postgres", options
        )

    def crash(self) -> None:
        """Kill the primary."""
        self.primary.crash()

    def start(self) -> None:
        """Start the primary again."""
        self.primary.start()

    def pause(self) -> None:
        """Pause the primary."""
        self.primary.pause()

    def resume(self) -> None:
        """Continue after `pause`."""
        self.primary.resume()

    def cut_off(self) -> None:
        """End the replication, when the standby has everything that is committed now."""
        self.standby.wait_for(self.primary)
        self.standby.cut_off()

    def promote(self) -> None:
        """Kill the primary, promote the standby, and replace it."""
        self.primary.crash()
        self.standby.promote()
        self.replace_standby()

    def replace_standby(self) -> None:
        """Give a standby that was promoted one at the port of the former primary, which has ended."""
        former, self.primary = self.primary, self.standby
        self._count += 1
        folder = self._folder / str(self._count)
        self.standby = self._stack.enter_context(self.primary.replica(folder, former=former))


async def promote(pair: Pair, hurt: Hurt) -> None:
    """Fail over to the standby."""
    await asyncio.to_thread(pair.promote)


async def promote_beside(pair: Pair, hurt: Hurt) -> None:
    """Fail over to a standby while the primary hangs, whose connections neither end nor are refused."""
    threads = await _lose(pair, hurt)
    pair.pause()
    await asyncio.to_thread(pair.standby.promote)
    await _until_new_epochs(threads, hurt)
    await asyncio.to_thread(pair.crash)
    await asyncio.to_thread(pair.replace_standby)


async def promote_with_loss(pair: Pair, hurt: Hurt) -> None:
    """Fail over to a standby that has not got the last acknowledged changes; all clients see a new epoch."""
    threads = await _lose(pair, hurt)
    await asyncio.to_thread(pair.promote)
    await _until_new_epochs(threads, hurt)


async def _lose(pair: Pair, hurt: Hurt) -> list[str]:
    """Have the standby miss acknowledged changes; return the threads."""
    threads = list(hurt.told.epochs)
    hurt.told.begin_loss()
    await asyncio.to_thread(pair.cut_off)
    await hurt.until_acknowledged(200)
    return threads


async def _until_new_epochs(threads: Sequence[str], hurt: Hurt) -> None:
    await hurt.load.until(lambda: all(len(hurt.told.epochs[each]) == 2 for each in threads))


@contextmanager
def small_disk(folder: Path, *, megabytes: int) -> Iterator[Path]:
    """Mount a small file system in memory, which may be filled."""
    folder.mkdir()
    options = f"size={megabytes}m,mode=711"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


async def fill_disk(disk: Path, server: Postgres, hurt: Hurt) -> None:
    """Fill the disk of the server until changes are refused, wait, and empty it."""
    fillers: list[Path] = []

    def fill() -> bool:
        found = os.statvfs(disk)
        if free := found.f_bavail * found.f_frsize:
            fillers.append(disk / f"filler{len(fillers)}")
            with fillers[-1].open("wb") as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, free)
                except OSError:  # The server was faster.
                    return False
        return bool(hurt.told.refused)

    try:
        await hurt.load.until(fill)
        await hurt.wait()
    finally:
        for each in fillers:
            each.unlink()
    # A server that cannot write its log ends.
    if not server.is_running:
        await asyncio.to_thread(server.start)
    log = server.log.read_text()
    assert "No space left on device" in log, log


async def late_statements(proxies: Mapping[str, CuttingProxy], hurt: Hurt) -> None:
    """Cut connections of a node in the middle of statements, which arrive when the node has asked for their outcome."""
    proxy = proxies[hurt.name]
    proxy.is_late, before = True, proxy.arrived_late
    for _ in range(30):
        proxy.fuse = hurt.chance.randrange(1, 8000)
        await hurt.load.until(lambda: proxy.fuse is None)
        await hurt.until_acknowledged(5)
    proxy.is_late = False
    assert proxy.arrived_late > before
