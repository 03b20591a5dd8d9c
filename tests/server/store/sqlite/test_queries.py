"""The queries that the docs show."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from plait import Plait, SqliteStore, Thread, Values

PAGE = Path(__file__).parents[4] / "docs" / "operations.md"


class Note(Thread[dict[str, Any]]):
    """A note with values."""

    initial_state = {"text": ""}  # noqa: RUF012
    values = Values()


async def test_the_queries_of_the_docs_find_a_thread_its_last_change_and_its_records(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    async with Plait(Note, store=SqliteStore(path)) as app:
        note = app.thread(Note, "ideas")
        for text in ("ideas", "more ideas"):
            await note.set_state({"text": text})
        await note.part(Note.values).set("theme", "dark")
    section = PAGE.read_text().partition("### Queries")[2].partition("\n## ")[0]
    find_thread, find_last, find_records = re.findall(r"^```sql\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    with closing(sqlite3.connect(path)) as db:
        ((head,),) = db.execute(find_thread).fetchall()
        assert json.loads(head)["space"] == 1
        ((version, change),) = db.execute(find_last).fetchall()
        assert (version, json.loads(change)["ops"][0]["value"]) == (2, "more ideas")
        assert "theme" in [json.loads(value)[0] for key, value in db.execute(find_records) if key.startswith("value/")]
