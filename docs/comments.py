"""Makes the comment above an attribute its docstring in the reference."""

from itertools import takewhile
from typing import Any

import griffe

__all__ = ["Comments"]


class Comments(griffe.Extension):
    """Makes docstrings of comments."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Give an attribute without a docstring the comment above it."""
        if attr.docstring is not None or attr.lineno is None or not attr.lines_collection:
            return
        above = [line.strip() for line in attr.lines_collection[attr.filepath][: attr.lineno - 1]]
        comment = [line.removeprefix("#").strip() for line in takewhile(lambda line: line[:1] == "#", reversed(above))]
        if comment:
            attr.docstring = griffe.Docstring(" ".join(reversed(comment)), parent=attr)
