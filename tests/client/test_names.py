"""The session of the Python client and that of the JavaScript client have the same names for the same things."""

import re
from pathlib import Path
from typing import Final

from plait_client.session import Session

SCRIPT: Final = Path(__file__).parents[2] / "client/js/src/session.ts"
# Why only one of the two has a name; the first lines of both files say the same.
ONLY_PYTHON: Final = {
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
    "send_binary": "Python's session makes the frame, JavaScript's is given it",
}
ONLY_SCRIPT: Final = {
    "phase": "in Python, `status` is made of it here",
    "pushes": "for what closed tabs have left",
    "is_sending": "for a client that keeps its pushes in a storage",
    "take_backlog": "for a storage",
    "restore": "for a storage",
    "own_presence": "for components of one page that share a client",
    "goes_on": "for editors",
}
METHOD: Final = re.compile(r"^  (?:get |async )?([a-z]\w*)\(", re.MULTILINE)


def find_script_names() -> set[str]:
    """Return the public names of the class in the script, in snake case."""
    body = SCRIPT.read_text().partition("export class Session {")[2].partition("\n}\n")[0]
    names = {name for name in METHOD.findall(body) if name != "constructor"}
    return {re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name) for name in names}


def find_python_names() -> set[str]:
    """Return the public names of the class and of its instances."""
    session = Session("c1", now=lambda: 0.0)
    return {name for name in dir(session) if not name.startswith("_")}


def test_the_two_sessions_have_the_same_names_but_for_those_with_a_reason() -> None:
    python, script = find_python_names(), find_script_names()
    assert len(script) > 20
    assert python - script == set(ONLY_PYTHON)
    assert script - python == set(ONLY_SCRIPT)
