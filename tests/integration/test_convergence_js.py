"""The same with the TypeScript client in Node."""

import hashlib
import logging
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from tests.integration.builds import Builds
from tests.integration.convergence_app import KINDS, LiveTextPad
from tests.integration.convergence_log import Log, Logs, canonical, logs
from tests.integration.convergence_node import bundle_client, driving
from tests.integration.convergence_server import Server
from tests.schedules import SEED, TIMES, schedules

from plait import Thread
from plait.store.thread_rows import ThreadKey

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900 * TIMES)]

SCHEDULES: Final = schedules(10)
AT_ONCE: Final = 4
KILLS: Final = schedules(2)
# The first of the letters that are typed, as edits.js has it.
FIRST: Final = "\U000f0000"


async def test_typescript_clients_end_with_the_state_of_a_server_that_is_killed(builds: Builds, tmp_path: Path) -> None:
    reports = await _play(builds, tmp_path, reloads=False)
    assert not _count(reports, "reloads")
    assert "conflict" in _outcomes(reports)


async def test_so_do_those_that_keep_their_queue_in_a_storage_while_their_page_is_reloaded(
    builds: Builds, tmp_path: Path
) -> None:
    reports = await _play(builds, tmp_path, reloads=True)
    assert _count(reports, "reloads")
    assert "conflict" in _outcomes(reports)


async def test_what_they_type_as_new_values_of_texts_is_there_to_the_letter(builds: Builds, tmp_path: Path) -> None:
    reports = await _play(builds, tmp_path, reloads=True, kinds=[LiveTextPad])
    letters = sum(_check_letters(report) for report in reports)
    log.warning("%d letters", letters)
    assert letters > SCHEDULES


async def _play(
    builds: Builds, folder: Path, *, reloads: bool, kinds: Sequence[type[Thread[Any]]] = KINDS
) -> list[dict[str, Any]]:
    """Play schedules, and check them."""
    log.warning("PLAIT_SEED=%d", SEED)
    async with Server(folder) as server:
        reports = await _reports(server, bundle_client(builds), kinds, reloads=reloads)
        for report in reports:
            at, state = await server.get(ThreadKey(report["kind"], report["name"]))
            _check_shown(report, state, int(at.partition(":")[2]))
    async with logs(server.store) as found:
        for report in reports:
            await _check_told(report, found)
    _check_that_much_happened(reports)
    return reports


async def _reports(
    server: Server, bundle: Path, kinds: Sequence[type[Thread[Any]]], *, reloads: bool
) -> list[dict[str, Any]]:
    """Play schedules, and kill the server under some of them."""
    options = {
        "bundle": bundle.as_uri(),
        "address": server.address,
        "seed": SEED,
        "count": SCHEDULES,
        "atOnce": AT_ONCE,
        "kinds": [kind._kind.name for kind in kinds],
        "reloads": reloads,
        "types": LiveTextPad in kinds,
    }
    deaths = random.Random(SEED).sample(range(1, SCHEDULES - AT_ONCE), KILLS)
    reports: list[dict[str, Any]] = []
    async with driving("play.js", options) as driver:
        while (report := await driver.line()) is not None:
            reports.append(report)
            if len(reports) in deaths:
                await server.restart()
    assert sorted(report["seed"] for report in reports) == [*range(SEED, SEED + SCHEDULES)]
    return reports


def _check_shown(report: dict[str, Any], state: Any, version: int) -> None:
    seed = report["seed"]
    problems = [*report["problems"], *(problem for player in report["players"] for problem in player["problems"])]
    assert not problems, f"schedule {seed}: {problems}"
    for player in report["players"]:
        assert player["version"] == version, f"schedule {seed}"
        assert player["state"] == player["confirmed"] == state, f"schedule {seed}"


async def _check_told(report: dict[str, Any], logs: Logs) -> None:
    found = await logs.read(ThreadKey(report["kind"], report["name"]))
    try:
        for player in report["players"]:
            assert None not in player["outcomes"].values()
            for version, seen in player["seen"].items():
                assert _hash(found, int(version)) == seen, f"version {version} was shown differently"
        found.check_tokens(_numbered(report, "tokens"), _numbered(report, "outcomes"))
        found.check_removals({player["connection"]: set(player["meant"]) for player in report["players"]})
    except AssertionError as error:
        error.add_note(f"schedule {report['seed']}")
        raise


def _check_letters(report: dict[str, Any]) -> int:
    """Check that each letter is there once that was typed, and not one that was deleted; return how many are there."""
    state = report["players"][0]["state"]
    texts = state["note"] + "".join(card["body"] for card in state["cards"])
    there = [letter for letter in texts if letter >= FIRST]
    outcomes = _numbered(report, "outcomes")
    typed, deleted = (
        {letter for number, each in _numbered(report, what).items() if outcomes[number] == "ack" for letter in each}
        for what in ("typed", "deleted")
    )
    assert sorted(there) == sorted(typed - deleted), f"schedule {report['seed']}"
    return len(there)


def _hash(found: Log, version: int) -> str:
    return hashlib.sha1(canonical(found.states[version])).hexdigest()


def _numbered(report: dict[str, Any], what: str) -> dict[int, Any]:
    return {int(number): each for player in report["players"] for number, each in player[what].items()}


def _check_that_much_happened(reports: Sequence[dict[str, Any]]) -> None:
    counts = {what: _count(reports, what) for what in ("edits", "looks", "cuts", "reloads")}
    log.warning("%d schedules, %s", len(reports), counts)
    assert {"ack", "rejected"} <= _outcomes(reports)
    assert counts["cuts"]


def _outcomes(reports: Sequence[dict[str, Any]]) -> set[str]:
    return {outcome for report in reports for outcome in _numbered(report, "outcomes").values()}


def _count(reports: Sequence[dict[str, Any]], what: str) -> int:
    return sum(player[what] for report in reports for player in report["players"])
