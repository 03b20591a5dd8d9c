"""What mkdocs does not know: which side sends a frame, the pages under a page, and where moved pages are."""

import re
from pathlib import Path
from typing import Any

__all__ = ["on_page_markdown", "on_post_build"]

_MOVED = """<!doctype html>
<meta charset="utf-8">
<title>This page has moved</title>
<link rel="canonical" href="{target}">
<meta http-equiv="refresh" content="1; url={target}">
<script>location.replace("{page}" + (location.hash || "#{anchor}"))</script>
<p>This page has moved to <a href="{target}">{target}</a>.</p>
"""


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Say which side sends a frame, link to the pages above and under a page, and rank references last in searches."""
    under: dict[str, list[str]] = config.extra["under"]
    name = page.file.src_path
    if name in under["reference.md"]:
        # Their titles are bare names: a search for one leads to the page that explains it.
        page.meta["search"] = {"boost": 0.001}
    lines = [f"Under {_link(above, files)}." for above, pages in under.items() if name in pages]
    if name in under:
        lines.append(f"Under this page: {', '.join(_link(each, files) for each in under[name])}.")
    if lines:
        # After the paragraph that says for whom the page is.
        title, first, rest = (*markdown.split("\n\n", 2), "", "")[:3]
        markdown = "\n\n".join((title, first, f"*{' '.join(lines)}*", rest))
    return re.sub(r"^```json (client|server)$", r'```json title="from the \1"', markdown, flags=re.MULTILINE)


def on_post_build(*, config: Any) -> None:
    """Write pages that lead from where others were to where these are."""
    for name, target in config.extra["moved"].items():
        page, _, anchor = target.partition("#")
        (Path(config.site_dir) / name).write_text(_MOVED.format(target=target, page=page, anchor=anchor))


def _link(name: str, files: Any) -> str:
    """Return a link to a page, whose text is its title."""
    source = files.get_file_from_path(name).content_string
    return f"[{re.sub(r'^# ', '', source.partition(chr(10))[0])}]({name})"
