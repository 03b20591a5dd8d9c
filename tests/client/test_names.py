"""The classes of the Python client and those of the JavaScript client have the same names for the same things."""

import re
from pathlib import Path
from typing import Final

from tests.cases import each_case

from plait_client.room import Room
from plait_client.room_files import RoomFiles
from plait_client.room_messages import RoomMessages
from plait_client.room_tasks import RoomTasks
from plait_client.session import Session
from plait_client.sync import SyncRoom
from plait_client.sync_files import SyncFiles
from plait_client.sync_messages import SyncMessages
from plait_client.sync_tasks import SyncTasks

SOURCES: Final = Path(__file__).parents[2] / "client/js/src"
# Why only one of the two sessions has a name; the first lines of both files say the same.
SESSION_ONLY_IN_PYTHON: Final = {
    "status": "in JavaScript, the link knows it, which also knows of a closing client",
    "needs_socket": "in JavaScript, it is an event, as no task waits for it",
    "stopped": "in JavaScript, it is an event",
    "client": "in JavaScript, a storage may change it",
    "thread": "only Python's rooms show it",
    "diff": "a function in JavaScript",
    "difference": "a function in JavaScript",
    "conversations": "in JavaScript, the option `messages` adds it to the session",
    "flush": "in JavaScript, the option `messages` adds it to the session",
    "post": "in JavaScript, the option `messages` adds it to the session",
    "check_state": "in JavaScript, the edits of a room check it",
    "reach": "in JavaScript, the queries set the version of the fold",
    "send_binary": "Python's session makes the frame, JavaScript's is given it",
}
SESSION_ONLY_IN_SCRIPT: Final = {
    "phase": "in Python, `status` is made of it here",
    "pushes": "for what closed tabs have left",
    "is_sending": "for a client that keeps its pushes in a storage",
    "max_frame": "for the option `messages`, which may be added later",
    "queue": "for a storage, and for editors",
    "tell": "for a storage",
    "doubt": "for pages, which are told when they are shown again",
}
ROOM_ONLY_IN_PYTHON: Final = {
    "changes": "an async iterator, for which JavaScript has the callback `onChange`",
    "epoch": "for programs that follow `changes` and keep versions",
    "keys": "for the edits of a room without asyncio",
    "on_presence": "JavaScript's `subscribe` tells of all values that have changed",
    "push": "for the edits of a room without asyncio",
    "shown": "for the edits of a room without asyncio",
    "thread": "JavaScript has the two parts `kind` and `name`, which its options have, too",
}
ROOM_ONLY_IN_SCRIPT: Final = {
    "add_parts": "for components of one page that share a client",
    "call_with": "Python's `call` takes keyword arguments, and a task that calls can be cancelled",
    "can_redo": "see `undo`",
    "can_undo": "see `undo`",
    "connect": "Python's room is open from `async with connect(…)` on",
    "edits_between": "for editors",
    "error": "in Python, whatever is used next raises Closed",
    "goes_on": "for editors",
    "initial_state": "for pages, which show something before there is a connection",
    "kind": "see `thread`",
    "name": "see `thread`",
    "on_change": "see `changes`",
    "on_text": "for editors",
    "own_presence": "for components of one page that share a client",
    "pause_history": "see `undo`",
    "reconnect": "for apps that are suspended, and shown again",
    "ready": "Python's `async with connect(…)` waits for it",
    "redo": "see `undo`",
    "resume_history": "see `undo`",
    "rpc": "methods by their names in JavaScript's spelling",
    "saved_at": "for pages, which show a state before there is a connection",
    "subscribe": "for the frameworks of pages",
    "undo": "for people at an editor",
}
MESSAGES_ONLY_IN_PYTHON: Final = {"on_change": "it is given the messages; see `subscribe`"}
MESSAGES_ONLY_IN_SCRIPT: Final = {
    "error": "in Python, `open` raises it",
    "is_loading": "for pages, which show it; in Python, `older` waits",
    "on_refused": "in Python, what `send` returns raises it, awaited or not",
    "subscribe": "for the frameworks of pages",
}
TASKS_ONLY_IN_PYTHON: Final = {"on_change": "it is given the runs; see `subscribe`"}
TASKS_ONLY_IN_SCRIPT: Final = {
    "error": "in Python, `open` raises it",
    "find": "for pages, which show one run",
    "run_with": "Python's `run` takes the key by name",
    "subscribe": "for the frameworks of pages",
}
# What a room without asyncio lacks: its own edits use it.
NOT_WITHOUT_ASYNCIO: Final = {"keys", "push", "shown"}
METHOD: Final = re.compile(r"^  (?:get |async )?([a-z]\w*)(?:<[^(]*>)?\(", re.MULTILINE)
FIELD: Final = re.compile(r"^  (?:readonly )?([a-z]\w*)(?::| =)", re.MULTILINE)
# The members of a class that options add, and those of the class that it extends.
ADDED: Final = {
    "ThreadClient": [
        ("parts.ts", "TextMethods"),
        ("parts.ts", "UndoMethods"),
        ("parts.ts", "HasCache"),
        ("parts.ts", "HasFiles"),
        ("thread-tasks.ts", "HasTasks"),
        ("queries-part.ts", "QueryMethods"),
    ],
    "ThreadMessages": [("thread-part.ts", "ThreadPart")],
    "ThreadTasks": [("thread-part.ts", "ThreadPart")],
}


def find_script_names(file: str, name: str) -> set[str]:
    """Return the public names of a class in a script, in snake case."""
    added = [find_script_names(*place) for place in ADDED.get(name, [])]
    return find_own_names(file, name).union(*added)


def find_own_names(file: str, name: str) -> set[str]:
    text = (SOURCES / file).read_text()
    start = rf"^export (?:(?:abstract )?class {name}\b|interface {name}(?:<\w+>)? {{\n)"
    body = re.split(start, text, flags=re.MULTILINE)[1].partition("\n}\n")[0]
    names = {found for found in METHOD.findall(body) + FIELD.findall(body) if found != "constructor"}
    return {re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", each) for each in names}


def find_python_names(thing: object) -> set[str]:
    """Return the public names of a class, or of an instance."""
    return {name for name in dir(thing) if not name.startswith("_")}


@each_case(
    ("python", "file", "script", "only_in_python", "only_in_script"),
    [
        (Session("c1", now=lambda: 0.0), "session.ts", "Session", SESSION_ONLY_IN_PYTHON, SESSION_ONLY_IN_SCRIPT),
        (Room, "client.ts", "ThreadClient", ROOM_ONLY_IN_PYTHON, ROOM_ONLY_IN_SCRIPT),
        (RoomMessages, "thread-messages.ts", "ThreadMessages", MESSAGES_ONLY_IN_PYTHON, MESSAGES_ONLY_IN_SCRIPT),
        (RoomTasks, "thread-tasks.ts", "ThreadTasks", TASKS_ONLY_IN_PYTHON, TASKS_ONLY_IN_SCRIPT),
    ],
)
def test_both_clients_have_the_same_names_but_for_those_with_a_reason(
    python: object, file: str, script: str, only_in_python: dict[str, str], only_in_script: dict[str, str]
) -> None:
    ours, theirs = find_python_names(python), find_script_names(file, script)
    assert len(ours & theirs) > 5
    assert ours - theirs == set(only_in_python)
    assert theirs - ours == set(only_in_script)


def test_a_room_without_asyncio_has_the_names_of_one_with_it() -> None:
    assert find_python_names(Room) - find_python_names(SyncRoom) == NOT_WITHOUT_ASYNCIO
    assert find_python_names(SyncRoom) <= find_python_names(Room)
    assert find_python_names(SyncMessages) == find_python_names(RoomMessages)
    assert find_python_names(SyncTasks) == find_python_names(RoomTasks)
    assert find_python_names(SyncFiles) == find_python_names(RoomFiles)
