"""The app of `test_preload`, whose processes are forked from one that has constructed it, as gunicorn's are."""

import asyncio
import os
import sys
from typing import Any

from plait import Context, Messages, Plait, Thread

# After that many processes, the poison has taken too many.
MOST = 6


class Inn(Thread[Any]):
    """Has a message that ends the process."""

    messages = Messages("taste")


async def serve(app: Plait, *, is_first: bool) -> None:
    """Queue the poison in the first process, and serve until it is not owed any longer."""
    async with app:
        inn = app.thread(Inn, "inn")
        if is_first:
            await inn.messages.queue("poison")
        while True:
            if [message.status for message in (await inn.messages.list()).messages] == ["failed"]:
                return
            await asyncio.sleep(0.01)


def main() -> None:
    """Tell by the exit code how many processes the poison has ended."""
    app = Plait(Inn, store=sys.argv[1])

    @app.agent("taste", thread=Inn)
    async def taste(ctx: Context[Inn]) -> None:
        """End the process."""
        os._exit(9)

    for number in range(MOST):
        if not (pid := os.fork()):
            asyncio.run(serve(app, is_first=number == 0))
            os._exit(0)
        if not os.waitpid(pid, 0)[1]:
            sys.exit(number)
    sys.exit(MOST)


if __name__ == "__main__":
    main()
