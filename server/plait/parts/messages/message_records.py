"""The records of one write to the messages of a thread, with the queue and the numbers of messages. No I/O."""

from collections.abc import Mapping, Sequence
from operator import attrgetter

from plait.parts.messages.message import (
    KEPT,
    Message,
    Outline,
    Status,
    StreamPlace,
    encode_message,
    history_key,
    id_key,
    line_key,
    measure_message,
    queue_key,
    read_id,
)
from plait.store.thread_rows import Record
from plait_schemas.codec import encode_json

__all__ = ["MessageRecords"]


class MessageRecords:
    """Collects records, by their keys; `limit` is the maximum bytes of one.

    `last` is the last position in the history, and `lines` the number of lines ever written to the log.
    """

    def __init__(self, queue: Sequence[Message], *, last: int, lines: int, queued_bytes: int, limit: int) -> None:
        self.limit = limit
        self._records: dict[str, bytes | None] = {}
        self.last = last
        self.lines = lines
        # The queued messages, in order, and their bytes.
        self.queue = queue
        self.queued_bytes = queued_bytes
        # The bytes of the messages that were added to the queue and are still there, by position.
        self.added: dict[int, int] = {}
        # The changes of `MessagesHead.counts`.
        self.counts: dict[str, int] = {}

    def update(self, records: Mapping[str, bytes | None]) -> None:
        """Put further records, or remove those with None."""
        self._records.update(records)

    def write(self, message: Message) -> None:
        """Write a message of the history. Raises TooLarge and TypeError."""
        self._records[history_key(message.position)] = encode_message(message, self.limit)

    def add(self, message: Message) -> bool:
        """Write a message that joins the history; return whether it is before the end."""
        self.write(message)
        if read_id(message.id) != message.position:
            self._records[id_key(message.id)] = b"%d" % message.position
        is_before = message.position < self.last
        self.last = max(self.last, message.position)
        return is_before

    def remove(self, message: Message | StreamPlace) -> None:
        """Remove a message of the history."""
        self._records[history_key(message.position)] = None
        if read_id(message.id) != message.position:
            self._records[id_key(message.id)] = None

    def put_pending(self, message: Message) -> None:
        """Add a message to the queue, or replace it."""
        data = self._records[queue_key(message.position)] = encode_message(message, self.limit)
        self.queued_bytes += len(data)
        queue = [each for each in self.queue if each.position != message.position]
        if len(queue) < len(self.queue):
            self.queued_bytes -= next(measure_message(x) for x in self.queue if x.position == message.position)
        if len(queue) == len(self.queue) or message.position in self.added:
            self.added[message.position] = len(data)
        queue.append(message)
        if len(queue) > 1 and queue[-2].position > message.position:
            queue.sort(key=attrgetter("position"))
        self.queue = queue

    def drop_pending(self, *messages: Message) -> None:
        """Remove messages from the queue."""
        gone = {message.position for message in messages}
        self._records.update((queue_key(position), None) for position in gone)
        self.queue = [each for each in self.queue if each.position not in gone]
        for message in messages:
            self.added.pop(message.position, None)
            self.queued_bytes -= measure_message(message)

    def log(self, revision: int, what: int | str) -> None:
        """Log, with its revision, the position that was written or the id that was removed."""
        self.lines += 1
        self._records[line_key(self.lines)] = encode_json((revision, what))
        if self.lines > KEPT:
            self._records[line_key(self.lines - KEPT)] = None

    def count(self, message: Message | StreamPlace | Outline, status: Status, number: int) -> None:
        """Add to the number of messages with a status."""
        key = f"{'s' if message.silent else 'v'}{status[0]}{message.depth}"
        self.counts[key] = self.counts.get(key, 0) + number

    def add_counts(self, before: Mapping[str, int]) -> Mapping[str, int]:
        """Return the numbers of messages after the write."""
        sums = {key: before.get(key, 0) + self.counts.get(key, 0) for key in {**before, **self.counts}}
        return {key: number for key, number in sums.items() if number}

    def finish(self, part: str) -> list[Record]:
        """Return the records."""
        return [Record(part, key, value) for key, value in self._records.items()]
