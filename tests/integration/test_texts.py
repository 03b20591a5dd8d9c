"""Several people, and a program, write in one text over real sockets."""

import asyncio
from pathlib import Path

import pytest
from tests.integration.socket_client import TIMEOUT, connected
from tests.running import running

from plait import Plait, Text, Thread, rpc
from plait_client import Room, connect

pytestmark = pytest.mark.relayed


class Pad(Thread[dict[str, Text]]):
    """Anything that people write."""

    initial_state = {"note": "", "answer": ""}  # noqa: RUF012

    @rpc
    async def answer(self, text: str) -> None:
        """Stream an answer."""
        for letter in text:
            self.append("/answer", letter)
            await asyncio.sleep(0)


def app(folder: Path) -> Plait:
    return Plait(Pad, store=f"sqlite:///{folder}/plait.db")


async def type_letters(room: Room[dict[str, str]], letters: str) -> None:
    """Type letters one after the other, each after the current place of the one before."""
    for index, letter in enumerate(letters):
        note = room.state["note"]
        at = note.index(letters[index - 1]) + 1 if index else len(note)
        room.splice("/note", at, 0, letter)
        await asyncio.sleep(0.001)


async def test_two_people_type_at_full_speed_while_the_server_streams_and_every_letter_is_there_once(
    tmp_path: Path,
) -> None:
    mine, theirs = ("".join(chr(first + index) for index in range(200)) for first in (0x4E00, 0x1F300))
    async with running(app(tmp_path)) as address, asyncio.timeout(TIMEOUT):
        url = f"ws://{address}/threads/pad/one"
        async with connect(url) as ada, connect(url) as bob:
            await asyncio.gather(
                type_letters(ada, mine), type_letters(bob, theirs), ada.call("answer", "It depends. " * 20)
            )
            for room in (ada, bob):
                await room.wait_for(lambda state: len(state["note"]) == 400 and len(state["answer"]) == 240)
                await room.wait_for(lambda _, room=room: room.pending == 0)  # type: ignore[misc]
            assert ada.state == bob.state
            note = ada.state["note"]
            assert "".join(letter for letter in note if letter in mine) == mine
            assert "".join(letter for letter in note if letter in theirs) == theirs
            assert ada.state["answer"] == "It depends. " * 20


async def test_a_client_that_writes_whole_states_does_not_wipe_what_others_type(tmp_path: Path) -> None:
    async with (
        running(app(tmp_path)) as address,
        asyncio.timeout(TIMEOUT),
        connect(f"ws://{address}/threads/pad/one") as native,
        connected(address, "/agents/pad/one") as whole,
    ):
        typed = "".join(chr(0x4E00 + index) for index in range(100))
        written = "".join(chr(0x1F300 + index) for index in range(20))

        async def write() -> None:
            for letter in written:
                await whole.until(lambda client: client.state is not None)
                await whole.push({**whole.state, "note": whole.state["note"] + letter})
                # It shows what it has written until the server's next state.
                await whole.until(lambda client, letter=letter: letter in client.state["note"])

        await asyncio.gather(type_letters(native, typed), write())
        await native.wait_for(lambda state: len(state["note"]) == 120)
        await whole.until(lambda client: client.state == native.state)
        note = native.state["note"]
        assert "".join(letter for letter in note if letter in typed) == typed
        assert sorted(letter for letter in note if letter in written) == sorted(written)
