"""Links between the workers of a server: Unix sockets in a folder."""

import asyncio
import os
from pathlib import Path

from plait.cluster.owners import NodeId
from plait.web.links.link import Answer, Link

__all__ = ["Folder"]


class Folder:
    """Links the workers of a server: worker `n` listens on the socket `<folder>/<n>.<app>.sock`.

    Only the user that runs the workers may use the folder.
    """

    def __init__(self, node: NodeId, folder: str | Path) -> None:
        self._node = node
        self._folder = Path(folder)
        # The number of this Plait in its process; each Plait has links of its own.
        self.app = 0

    async def listen(self, answer: Answer) -> asyncio.Server:
        """Listen for other workers, in the place of an earlier process of this worker."""
        path = self._path(self._node)
        new = path.with_suffix(f".{os.getpid()}")
        new.unlink(missing_ok=True)
        server = await asyncio.get_running_loop().create_unix_server(lambda: answer(None), str(new))
        new.rename(path)
        return server

    async def dial(self, node: NodeId, link: Link) -> None:
        """Connect with a worker."""
        await asyncio.get_running_loop().create_unix_connection(lambda: link, str(self._path(node)))

    def _path(self, node: NodeId) -> Path:
        return self._folder / f"{node}.{self.app}.sock"
