"""Links between the workers of a server: Unix sockets in a folder."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from plait.cluster.owners import NodeId
from plait.web.links.link import Link

__all__ = ["Folder"]


class Folder:
    """Links the workers of a server: worker `n` listens on the socket `<folder>/<n>.<app>.sock`.

    Only the user that runs the workers may use the folder.
    """

    def __init__(self, node: NodeId, folder: str | Path) -> None:
        self._node = node
        self._folder = Path(folder)
        # The number of the Plait among those of a server; each has links of its own.
        self.app = 0

    async def listen(self, answer: Callable[[NodeId | None], Link]) -> asyncio.Server:
        """Listen for other workers; a former process of this one is replaced."""
        path = self._path(self._node)
        new = path.with_suffix(f".{os.getpid()}")
        new.unlink(missing_ok=True)
        server = await asyncio.get_running_loop().create_unix_server(lambda: answer(None), str(new))
        new.rename(path)
        return server

    async def dial(self, node: NodeId, make: Callable[[], Link]) -> Link:
        """Connect with a worker."""
        _, link = await asyncio.get_running_loop().create_unix_connection(make, str(self._path(node)))
        return link

    def _path(self, node: NodeId) -> Path:
        return self._folder / f"{node}.{self.app}.sock"
