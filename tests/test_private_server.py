"""Private servers of tests."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.private_server import PrivateServer

PROGRAM = """
import sys, time
print(sys.argv[1], flush=True)
time.sleep(0 if sys.argv[1] == "ends" else 600)
"""


class Fake(PrivateServer):
    """A program that prints its option, and ends or never answers."""

    def _command(self) -> Sequence[str | Path]:
        return sys.executable, "-c", PROGRAM

    def _is_ready(self) -> bool:
        # When it has printed something, it does not answer for much too long.
        self.patience = 0.0 if self.log.read_text() == "hangs\n" else 60.0
        return False


@pytest.mark.parametrize("how", ["ends", "hangs"])
def test_a_server_that_does_not_start_is_ended_and_its_log_is_shown(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, pids = Fake(tmp_path / "own", how), list[int]()
    begin = server.begin
    monkeypatch.setattr(server, "begin", lambda: (begin(), pids.append(server.pid)))
    with pytest.raises(AssertionError, match=how):
        server.__enter__()
    assert not server.is_running
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    assert [each.fileno() for each in server._held] == [-1]
