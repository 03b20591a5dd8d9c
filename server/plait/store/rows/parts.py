"""The names of the parts whose rows are not records; `layout.py` tells what is in them."""

from typing import Final

__all__ = [
    "CHANGE",
    "CHANGED",
    "CLIENT",
    "CREATED",
    "DUE",
    "FORMAT",
    "NUMBER",
    "OWN",
    "OWNER",
    "REMOVED",
    "SCHEMA",
    "SNAPSHOT",
    "THREAD",
    "USER",
]

OWN: Final = "~"
"""The start of all of them."""

CHANGE: Final = "~c"
SNAPSHOT: Final = "~s"
CLIENT: Final = "~p"

THREAD: Final = "~thread/"
CREATED: Final = "~created/"
CHANGED: Final = "~changed/"
DUE: Final = "~due"
USER: Final = "~user/"
REMOVED: Final = "~removed"
SCHEMA: Final = "~schema/"
NUMBER: Final = "~number"
OWNER: Final = "~owner/"
FORMAT: Final = "~format"
