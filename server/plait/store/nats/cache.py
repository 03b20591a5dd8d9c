"""Keeps the names of the rows of threads that this process writes, so that they are not listed for each read."""

from bisect import bisect_left, insort
from typing import Final

from plait.store.nats.contents import Contents
from plait.store.nats.layout import Known, Name, Segment, read_names
from plait.store.thread_rows import ThreadKey

__all__ = ["ContentsCache"]

# The most threads.
_MOST: Final = 1000


class ContentsCache:
    """The contents of threads; valid as long as the sequence of the head is the cached one."""

    def __init__(self) -> None:
        self._found: dict[ThreadKey, Contents] = {}

    def has(self, key: ThreadKey) -> bool:
        """Whether something is cached of a thread."""
        return key in self._found

    def find(self, known: Known) -> Contents | None:
        """Return what a thread has that has this head, None if it is not known."""
        found = self._found.get(known.head.key)
        return found if found is not None and found.known.sequence == known.sequence else None

    def add(self, contents: Contents) -> None:
        """Cache what a thread has."""
        if len(self._found) >= _MOST:
            del self._found[next(iter(self._found))]
        self._found[contents.known.head.key] = contents

    def drop(self, key: ThreadKey) -> None:
        """Forget a thread."""
        self._found.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        self._found.clear()

    def write(self, before: Known, after: Known, rows: dict[str, bytes | None]) -> None:
        """Record that a write has made `after` of the head `before`, with `rows` in the stream."""
        key, thread = before.head.key, after.head.thread
        found = self._found.pop(key, None)
        if found is None or found.known.sequence != before.sequence or thread is None:
            return
        if thread.generation != found.thread.generation:
            return
        touched = rows or thread.rows
        names = {rest: name for name, rest in read_names((found.start + rest for rest in touched), found.start)}
        for rest, value in touched.items():
            if (name := names.get(rest)) is not None:
                _set(found, name, rest, is_there=value is not None)
        if thread.floor > found.thread.floor:
            found.segments[:] = [each for each in found.segments if each[0].last > thread.floor]
            for version in [each for each in found.snapshots if each < thread.floor]:
                del found.snapshots[version]
        self._found[key] = found._replace(known=after, thread=thread)


def _set(contents: Contents, name: Name, rest: str, *, is_there: bool) -> None:
    match name.what:
        case "changes":
            assert isinstance(name.segment, Segment)
            insort(contents.segments, (name.segment, rest))
        case "snapshot" if is_there:
            contents.snapshots[name.version] = rest
        case "client" if is_there:
            contents.clients[name.text] = rest
        case "client":
            contents.clients.pop(name.text, None)
        case "record":
            key = name.part, name.text
            if is_there and key not in contents.records:
                insort(contents.names, key)
                contents.records[key] = rest
            elif not is_there and key in contents.records:
                del contents.names[bisect_left(contents.names, key)]
                del contents.records[key]
