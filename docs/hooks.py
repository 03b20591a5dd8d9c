"""What mkdocs does not know by itself: a frame of the protocol's page says which side sends it."""

import re

__all__ = ["on_page_markdown"]


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put the side that sends a frame into the head of its block."""
    return re.sub(r"^```json (client|server)$", r'```json title="from the \1"', markdown, flags=re.MULTILINE)
