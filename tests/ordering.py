"""The order in which many workers run tests: those that wait come first, beside those that use the processors."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

import pytest

__all__ = ["WAITING", "deal"]

# Files whose tests mostly wait, for processes, browsers and outages; the longest first.
WAITING: Final = (
    "tests/cluster/test_faults.py",
    "tests/workers/test_processes.py",
    "tests/integration/test_chat_page.py",
    "tests/cluster/test_nodes.py",
    "tests/cluster/test_starts.py",
    "tests/integration/test_todo_react.py",
    "tests/integration/test_board_page.py",
    "tests/integration/test_text_pages.py",
    "tests/integration/test_pages_accessible.py",
    "tests/integration/test_pages.py",
    "tests/cluster/test_moves.py",
    "tests/integration/test_assistant_page.py",
    "tests/integration/test_expiry_kill.py",
    "tests/integration/test_engines.py",
    "tests/server/web/http/test_http_protocol.py",
    "tests/integration/test_pad_page.py",
    "tests/cluster/test_late.py",
    "tests/integration/test_cli.py",
    "tests/server/store/test_outages.py",
    "tests/server/store/test_nats_outages.py",
    "tests/integration/test_store_copy.py",
    "tests/integration/test_games_pages.py",
    "tests/integration/test_agents_client_browser.py",
    "tests/server/store/sqlite/test_file_identity.py",
    "tests/server/cluster/test_nats.py",
    "tests/server/store/test_postgres_outages.py",
    "tests/workers/test_kills.py",
    "tests/cluster/test_rollout.py",
    "tests/cluster/test_commands.py",
    "tests/server/cluster/test_directories.py",
    "tests/integration/test_workers_page.py",
    "tests/integration/test_fill_kill.py",
    "tests/integration/test_agents_client_react.py",
    "tests/integration/test_opening.py",
    "tests/integration/test_loop_watcher.py",
    "tests/integration/test_clock.py",
    "tests/cluster/test_startup.py",
    "tests/integration/test_messages_live.py",
    "tests/integration/test_login_page.py",
    "tests/server/store/test_nats_owners.py",
    "tests/cluster/test_alone.py",
    "tests/integration/test_native_kill.py",
    "tests/integration/test_relay.py",
    "tests/integration/test_traces.py",
    "tests/integration/test_tutorial_page.py",
    "tests/integration/test_cursors_page.py",
    "tests/integration/test_store_file.py",
    "tests/integration/test_store_kill.py",
    "tests/integration/test_schedule_kill.py",
    "tests/integration/test_sql_kill.py",
    "tests/integration/test_messages_kill.py",
    "tests/integration/test_values_kill.py",
    "tests/integration/test_kill.py",
    "tests/integration/test_shutdown.py",
    "tests/server/store/test_owners.py",
    "tests/server/web/test_descriptors.py",
    "tests/workers/test_metrics.py",
    "tests/cluster/test_members.py",
    "tests/cluster/test_status.py",
    "tests/cluster/test_unfinished_copies.py",
    "tests/workers/test_members.py",
    "tests/integration/test_run_readers.py",
    "tests/integration/test_convergence_js.py",
    "tests/integration/test_convergence_sockets.py",
    "tests/integration/test_store_replaced.py",
)


def deal(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the items in an order in which most workers begin with tests that wait, and the others use the processors.

    xdist gives each worker an equal piece of the list; a worker that is done takes from the ends of the others.
    """
    files: dict[str, list[pytest.Item]] = {file: [] for file in WAITING}
    others: list[pytest.Item] = []
    for item in items:
        files.get(item.nodeid.partition("::")[0], others).append(item)
    # A file stays in one piece: its tests may share servers.
    pieces: list[list[pytest.Item]] = [[] for _ in range(workers)]
    waiting = workers - workers // 3
    for number, found in enumerate(found for found in files.values() if found):
        turn, place = divmod(number, waiting)
        pieces[place if turn % 2 == 0 else waiting - 1 - place] += found
    rest: Iterator[pytest.Item] = iter(others)
    left = len(items)
    for number, piece in enumerate(pieces):
        size = left // (workers - number)
        left -= size
        rest = chain(piece[size:], rest)
        piece[size:] = islice(rest, size - len(piece[:size]))
    return [item for piece in pieces for item in piece]
