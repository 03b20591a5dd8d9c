"""The keys of a store in Redis, and how spans and changes of rows become arguments of scripts.

All keys begin with the same hash tag, so that one script may use them. Those of the space with the number N:

- `o:N`, a sorted set: the names of its rows, in the order of their bytes. A name is the part, a zero byte and the key,
  or the part, a byte 1 and a number of 19 digits.
- `r:N`, a hash: the values of its rows by name, but those without bytes.
- `c:N`, a list: its changes, each the version, a colon and the value. Only the first ones are removed.

And by kind and name of threads, two hashes: `w`, the rows of their owners; `m`, how often a thread was written so that
reads of it may have to begin again.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from plait.store.rows.engine import INDEX, Key, Place, Range, Row, Span
from plait.store.rows.parts import CHANGE, OWN, OWNER, THREAD
from plait.store.rows.server import Guarded
from plait.store.thread_rows import ThreadKey

__all__ = [
    "MARKS",
    "OWNERS",
    "decode_rows",
    "encode_change",
    "encode_span",
    "head_name",
    "needs_room",
    "owner_name",
]

_SORTED: Final = b"o:%d"
_ROWS: Final = b"r:%d"
_LOG: Final = b"c:%d"
OWNERS: Final = b"w"
MARKS: Final = b"m"

_TEXT: Final = b"\0"
_NUMBER: Final = b"\1"
_AFTER: Final = b"\2"
# After each version.
_NO_VERSION: Final = 2**53 - 1
# The most values in one command, as a script unpacks it.
_VALUES: Final = 1000

_Command = Sequence[object]


def owner_name(key: ThreadKey) -> bytes:
    """Return the field of the owner of a thread."""
    return f"{key.kind}\0{key.name}".encode()


def head_name(key: ThreadKey) -> bytes:
    """Return the name of the row of a thread."""
    return _name(THREAD + key.kind, key.name)


# Reading


def encode_span(span: Span) -> list[object]:
    """Return the arguments of a span for `READ`. Raises UnicodeEncodeError."""
    space, start, end = span.space, span.start, span.end
    number, head = (space, b"") if isinstance(space, int) else ("", head_name(space))
    bounds: tuple[object, object] = _bound(start), _bound(end)
    how = "rows"
    if start[0] == CHANGE:
        how, bounds = "log", _versions(start, end)
    elif _is_one(start, end):
        how = "row"
    elif start[0] < CHANGE < end[0]:
        how = "all"
    size = "" if span.size is None else max(span.size, 1)
    return [number, head, how, *bounds, int(span.reverse), span.limit, size, int(span.keys_only)]


def decode_rows(span: Span, found: Sequence[Any]) -> list[Row]:
    """Return the rows of a span in the answer of `READ`."""
    return [(*_decode(name), value) for name, value in zip(found[::2], found[1::2], strict=True)]


def _decode(name: bytes) -> tuple[str, Key]:
    part, is_text, key = name.partition(_TEXT)
    if is_text:
        return part.decode(), key.decode()
    part, _, digits = name.rpartition(_NUMBER)
    return part.decode() or CHANGE, int(digits)


def _name(part: str, key: Key) -> bytes:
    if isinstance(key, int):
        return b"%b%b%019d" % (part.encode(), _NUMBER, key)
    return b"%b%b%b" % (part.encode(), _TEXT, key.encode())


def _bound(place: Place) -> bytes:
    """Return the name at a place; after a part, it is before all parts that follow."""
    if len(place) == 2:
        return _name(*place)
    part = place[0].encode()
    return part[:-1] + _AFTER if part.endswith(b"\0") else part


def _is_one(start: Place, end: Place) -> bool:
    """Whether the row of one text may be between places, and no other one."""
    return len(start) == 2 and end == (start[0], f"{start[1]}\0")


def _versions(start: Place, end: Place) -> tuple[Key, Key]:
    last = end[1] if len(end) == 2 else _NO_VERSION
    return start[1] if len(start) == 2 else 0, min(int(last), _NO_VERSION)


# Writing


def encode_change(tag: bytes, change: Guarded) -> list[object]:
    """Return the arguments of a change for `COMMIT`: its owner, and its commands, each with the count of its values.

    Raises UnicodeEncodeError.
    """
    commands = [*_write(tag, change.rows), *_remove(tag, change.gone)]
    commands += [("DEL", *(tag + each % space for each in (_SORTED, _ROWS, _LOG))) for space in change.spaces]
    found: list[object] = [b"", b"", len(commands)]
    if change.guard is not None:
        part, name, value = change.guard
        found[:2] = _owner(part, name), value
        if _needs_mark(change):
            commands.append(("HINCRBY", tag + MARKS, found[0], 1))
            found[2] = len(commands)
    for command in commands:
        found.append(len(command))
        found += command
    return found


def needs_room(change: Guarded) -> bool:
    """Whether a change is refused while the memory is full.

    Threads are deleted then, and listings have the times of their last changes.
    """
    return any(space != INDEX or change.guard is None for space, _, _, _ in change.rows)


def _needs_mark(change: Guarded) -> bool:
    """Whether a change replaces or removes rows of a thread that reads of several steps may need."""
    is_removing = any(space != INDEX for space, *_ in change.gone)
    return is_removing or any(space != INDEX and part < OWN for space, part, _, _ in change.rows)


def _owner(part: str, name: Key) -> bytes:
    return f"{part[len(OWNER) :]}\0{name}".encode()


def _write(tag: bytes, rows: Sequence[tuple[int, str, Key, bytes]]) -> Iterable[_Command]:
    logs: dict[int, list[bytes]] = {}
    others: dict[int, dict[bytes, bytes]] = {}
    for space, part, key, value in rows:
        if part == CHANGE:
            logs.setdefault(space, []).append(b"%d:%b" % (int(key), value))
        elif space == INDEX and part.startswith(OWNER):
            yield "HSET", tag + OWNERS, _owner(part, key), value
        else:
            others.setdefault(space, {})[_name(part, key)] = value
    for space, changes in logs.items():
        yield from _split(("RPUSH", tag + _LOG % space), changes)
    for space, values in others.items():
        sorted_key, rows_key = tag + _SORTED % space, tag + _ROWS % space
        kept = [each for pair in values.items() if pair[1] for each in pair]
        empty = [name for name, value in values.items() if not value]
        yield from _split(("put", sorted_key, rows_key), kept)
        yield from _split(("ZADD", sorted_key), [each for name in empty for each in (0, name)])
        yield from _split(("HDEL", rows_key), empty)


def _remove(tag: bytes, gone: Sequence[Range]) -> Iterable[_Command]:
    names: dict[int, list[bytes]] = {}
    # By space, the version before which changes are removed.
    logs: dict[int, Key] = {}
    for space, part, start, end in gone:
        if part == CHANGE:
            logs[space] = end
        elif space == INDEX and part.startswith(OWNER):
            yield "HDEL", tag + OWNERS, _owner(part, start)
            yield "HDEL", tag + MARKS, _owner(part, start)
        elif end == (start + 1 if isinstance(start, int) else f"{start}\0"):
            names.setdefault(space, []).append(_name(part, start))
        else:
            yield "range", tag + _SORTED % space, tag + _ROWS % space, _name(part, start), _name(part, end)
    for space, version in logs.items():
        yield "log", tag + _LOG % space, version
    for space, some in names.items():
        yield from _split(("ZREM", tag + _SORTED % space), some)
        yield from _split(("HDEL", tag + _ROWS % space), some)


def _split(command: _Command, values: Sequence[object]) -> Iterable[_Command]:
    for at in range(0, len(values), _VALUES):
        yield *command, *values[at : at + _VALUES]
