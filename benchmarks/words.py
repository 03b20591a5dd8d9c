"""Counts how often words are torn when two people each type a word at one place, over a slow network.

`python -m benchmarks.words [RUNS] [MILLISECONDS]`, by default 12 runs for each pair of clients and 60 ms one way. The
clients are those of Python and Node, the latter as built in client/js/dist.
"""

import asyncio
import itertools
import random
import sys
import tempfile
from asyncio import StreamReader, StreamWriter
from pathlib import Path
from typing import Final

from benchmarks.textarea import serve_app
from plait_client import connect

APP: Final = """
from plait import Plait, Thread

class Note(Thread[dict]):
    texts = ("/note",)
    initial_state = {"note": "[]", "here": ""}

app = Plait(Note, store="memory://")
"""
LETTERS: Final = 14
NODE: Final = Path(__file__).parent / "words.js"
PAIRS: Final = {"Python and Python": "pp", "Python and Node": "pn", "Node and Node": "nn"}


class Delay:
    """Carries bytes to the server and back, with the same delay for each."""

    def __init__(self, port: int, delay: float) -> None:
        self._port = port
        self._delay = delay
        self._tasks: set[asyncio.Task[None]] = set()

    async def carry(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Carry one connection until it ends."""
        answers, server = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._move(reader, server), self._move(answers, writer))

    async def _move(self, reader: StreamReader, writer: StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await reader.read(65536):
                loop.call_later(self._delay, writer.write, data)
        except ConnectionError:
            pass
        loop.call_later(self._delay, writer.close)


async def _type(url: str, letter: str) -> None:
    async with connect(url) as room:
        room.append("/here", letter)
        await room.wait_for(lambda state: len(state["here"]) == 2)
        typed = []
        for _ in range(LETTERS):
            text = room.state["note"]
            at = text.rindex(letter) + 1 if letter in text else 1
            typed.append(room.splice("/note", at, 0, letter))
            await asyncio.sleep(0.04 + random.random() * 0.1)
        await asyncio.gather(*typed)


async def _type_in_node(url: str, letter: str) -> None:
    process = await asyncio.create_subprocess_exec("node", NODE, url, letter, str(LETTERS))
    assert await process.wait() == 0


async def count_torn(port: int, typists: str, runs: int, delay: float) -> int:
    """Return in how many runs a word is torn."""
    network = Delay(port, delay)
    server = await asyncio.start_server(network.carry, "127.0.0.1", 0)
    near = server.sockets[0].getsockname()[1]

    async def run(number: int) -> bool:
        name = f"threads/note/{typists}-{number}"
        types = {"p": _type, "n": _type_in_node}
        await asyncio.gather(
            *(types[kind](f"ws://127.0.0.1:{near}/{name}", "ab"[at]) for at, kind in enumerate(typists))
        )
        async with connect(f"ws://127.0.0.1:{port}/{name}") as room:
            text = room.state["note"]
        assert sorted(text) == sorted("[]" + "ab" * LETTERS), text
        return sum(a != b for a, b in itertools.pairwise(text)) > 3

    torn = [await run(number) for number in range(runs)]
    server.close()
    return sum(torn)


def main() -> None:
    """Print a line for each pair."""
    runs, delay = int(sys.argv[1]) if sys.argv[1:] else 12, (float(sys.argv[2]) if sys.argv[2:] else 60) / 1000
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "letters_app.py").write_text(APP)
        with serve_app(Path(folder)) as address:
            for name, typists in PAIRS.items():
                torn = asyncio.run(count_torn(int(address.rpartition(":")[2]), typists, runs, delay))
                print(f"{name}: {torn} of {runs} runs torn at {delay * 1000:.0f} ms one way", flush=True)


if __name__ == "__main__":
    main()
