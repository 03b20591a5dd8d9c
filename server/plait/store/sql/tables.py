"""The names of a store's tables in an SQL database."""

import re
from typing import Final

__all__ = ["Tables"]

_NAME: Final = re.compile(r"\{([a-z]+)\}")


class Tables:
    """The names of a store's tables, for its SQL. Those in a `schema` are qualified with it."""

    def __init__(self, prefix: str, schema: str = "") -> None:
        self.schema = schema
        self.prefix = prefix
        self._qualifier = f'"{schema}".' if schema else ""
        self._filled: dict[str, str] = {}

    def fill(self, sql: str) -> str:
        """Return SQL with the names of tables instead of `{rows}` and so on."""
        if (filled := self._filled.get(sql)) is None:
            filled = self._filled[sql] = _NAME.sub(lambda found: f'{self._qualifier}"{self.prefix}{found[1]}"', sql)
        return filled
