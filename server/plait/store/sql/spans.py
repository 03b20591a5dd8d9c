"""The SQL that reads spans of rows, for all SQL databases.

A row has the columns `thread`, `part`, `number`, `key` and `value`. The first four are its place, in their order. Text
is stored as bytes of UTF-8, which any database orders by code point, and which may have zeros. The key of a row is its
`number`, or its `key` if the number is -1.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from plait.store.rows.engine import INDEX, Key, Row, Span
from plait.store.rows.parts import CHANGE, THREAD
from plait.store.thread_rows import ThreadKey

__all__ = ["TEXT", "Located", "SpanSql", "key_of", "locate"]

TEXT: Final = -1
"""The number of a row whose key is text."""

_BEFORE_ALL: Final = -2


class Located(NamedTuple):
    """A place as it is stored."""

    part: bytes
    number: int
    key: bytes


def locate(part: str, key: Key | None = None) -> Located:
    """Return a place as it is stored. Raises UnicodeEncodeError."""
    if key is None:
        return Located(part.encode(), _BEFORE_ALL, b"")
    return Located(part.encode(), key, b"") if isinstance(key, int) else Located(part.encode(), TEXT, key.encode())


def key_of(number: int, key: bytes) -> Key:
    """Return a key from its columns."""
    return key.decode() if number == TEXT else number


class SpanSql:
    """One statement that reads spans, so that it sees one moment.

    `space` is the SQL for the number of a thread's space, of the `value` in its row, and `empty` that of no bytes. With
    `compares_rows`, an index serves the comparison of several columns at once. `log` is the table that has the changes.
    """

    def __init__(
        self, spans: Sequence[Span], *, space: str, empty: str, compares_rows: bool, log: str = "{rows}"
    ) -> None:
        self._space, self._empty, self._log = space, empty, log
        self._compares_rows = compares_rows
        self._spans = spans
        self.values: list[Any] = []
        self.sql = " UNION ALL ".join(
            self._select(index, span, table) for index, span in enumerate(spans) for table in self._find_tables(span)
        )

    def sort(self, found: Sequence[Any]) -> list[list[Row]]:
        """Return the rows of each span, of those that the statement finds."""
        rows: list[list[Any]] = [[] for _ in self._spans]
        for index, *row in found:
            rows[index].append(row)
        return [
            [(part.decode(), key_of(number, key), value) for part, number, key, value in _sort(some, span)]
            for some, span in zip(rows, self._spans, strict=True)
        ]

    # Inside

    def _put(self, value: Any) -> str:
        self.values.append(value)
        return f"${len(self.values)}"

    def _find_tables(self, span: Span) -> Sequence[str]:
        """Return the tables that may have rows of a span. One over all parts may find more than its limit in two."""
        if self._log == "{rows}":
            return (self._log,)
        if span.start[0] == CHANGE:
            return (self._log,)
        return ("{rows}", self._log) if span.start[0] < CHANGE < span.end[0] else ("{rows}",)

    def _select(self, index: int, span: Span, table: str) -> str:
        direction = "DESC" if span.reverse else "ASC"
        # MariaDB sorts all rows of a part if the order begins with the part.
        columns = ("number", '"key"') if _is_one_part(span) else ("part", "number", '"key"')
        order = ", ".join(f"{name} {direction}" for name in columns)
        value = self._empty if span.keys_only else "value"
        where = f"thread = {self._find_space(span.space)} AND {self._bound(span)}"
        sql = f'SELECT {index} AS place, part, number, "key", {value} AS value FROM {table} WHERE {where}'
        sql += f" ORDER BY {order} LIMIT {self._put(span.limit)}"
        if span.size is None:
            return f"({sql})"
        # The last row is that at which the values reach the size, the first one at least.
        before = f"SELECT s.*, sum(length(value)) OVER (ORDER BY {order}) - length(value) AS before_it FROM ({sql}) s"
        size = self._put(max(span.size, 1))
        return f'(SELECT place, part, number, "key", value FROM ({before}) span{index} WHERE before_it < {size})'

    def _find_space(self, space: "int | ThreadKey") -> str:
        if isinstance(space, int):
            return self._put(space)
        part, number, key = locate(THREAD + space.kind, space.name)
        return (
            f"(SELECT {self._space} FROM {{rows}} WHERE thread = {INDEX} AND part = {self._put(part)} "
            f'AND number = {number} AND "key" = {self._put(key)})'
        )

    def _bound(self, span: Span) -> str:
        start, end = span.start, span.end
        first, last = locate(*start), locate(*end)
        if not _is_one_part(span):
            return f"{self._compare('>=', first)} AND {self._compare('<', last)}"
        found = [f"part = {self._put(first.part)}"]
        keys = [(sign, at) for sign, at, place in ((">=", first, start), ("<", last, end)) if len(place) > 1]
        if any(at.number == TEXT for _, at in keys):
            found.append(f"number = {TEXT}")
        for sign, at in keys:
            column, value = ('"key"', at.key) if at.number == TEXT else ("number", at.number)
            found.append(f"{column} {sign} {self._put(value)}")
        return " AND ".join(found)

    def _compare(self, sign: str, at: Located) -> str:
        part, number, key = (self._put(value) for value in at)
        if self._compares_rows:
            return f'(part, number, "key") {sign} ({part}, {number}, {key})'
        strict = sign[0]
        return (
            f"part {strict}= {part} AND (part {strict} {part} OR number {strict} {number} "
            f'OR number = {number} AND "key" {sign} {key})'
        )


def _is_one_part(span: Span) -> bool:
    (part, *_), (last, *key) = span.start, span.end
    return last == part or (last == part + "\0" and not key)


def _sort(rows: list[Any], span: Span) -> list[Any]:
    """Return rows in the order of their places, in which most databases find them."""
    return sorted(rows, key=lambda row: row[:3], reverse=span.reverse)
