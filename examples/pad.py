"""Shared notes: people type in the same texts at once, and so does the server."""

import asyncio
import re
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from plait import Conflict, Plait, Reject, Source, Stretch, Text, Thread, current, rpc

PAGES = Path(__file__).parent / "pages"
STORY = PAGES / "pad" / "story.md"
PAUSE = 0.04
MAX_DOCUMENTS = 30
MAX_PEOPLE = 500

Id = Annotated[str, Meta(pattern="^[a-z0-9-]{1,32}$")]
Title = Annotated[str, Meta(min_length=1, max_length=60)]
Body = Annotated[Text, Meta(max_length=20_000)]
Name = Annotated[str, Meta(min_length=1, max_length=40)]


class Document(Struct, frozen=True):
    """A text in Markdown."""

    title: Title
    body: Body = ""


class Person(Struct, frozen=True):
    """A person who was on a connection."""

    name: Name
    # The hue, in degrees.
    color: float


class PadState(Struct, frozen=True):
    """Every document by its id, and every person who was here by the id of their connection."""

    documents: dict[Id, Document]
    people: dict[str, Person] = {}


WELCOME = """\
# Welcome

Open this page in a second window and **type in both**: no letter is lost.

- Each of you has a *colour*, and a caret in it
- Undo takes back only what you have typed yourself
- “Who wrote what” shows who wrote which words

Go offline, type on, and come back. Press “Ask the server to write”, and type between its lines.

The text is Markdown: `code`, **bold**, *emphasis*, [links](https://commonmark.org).
"""
LIST = "# Shopping\n\n- Bread\n- Apples\n- A second kettle\n"


class Pad(Thread[PadState]):
    """Pages type in the texts themselves; the server merges their typing, and writes a text of its own."""

    initial_state = PadState({"welcome": Document("Welcome", WELCOME), "shopping": Document("Shopping", LIST)})

    def on_start(self) -> None:
        # The documents in which the server is writing.
        self.writing = set[str]()

    def validate_state_change(self, next_state: PadState, source: Source) -> None:
        if len(next_state.documents) > MAX_DOCUMENTS:
            raise Reject(f"a pad has room for {MAX_DOCUMENTS} documents")
        if source != "server" and next_state.people != self.state.people:
            raise Reject("only the server changes the list of people", path="/people")

    @rpc
    def introduce(self, name: Name, color: float) -> None:
        """Store the caller's name, which is shown after they have left."""
        connection = current().connection
        if connection is None:
            return
        others = [(id, person) for id, person in self.state.people.items() if id != connection.id]
        people = dict([*others[1 - MAX_PEOPLE :], (connection.id, Person(name, color))])
        self.set_state(lambda state: replace(state, people=people))

    @rpc
    async def find_authors(self, document: Id) -> list[Stretch]:
        """Return the parts of a document with the connections that wrote them."""
        return await self.authors(f"/documents/{document}/body")

    @rpc(concurrent=True)
    async def write_story(self, document: Id) -> None:
        """Append a text to a document, a word at a time, as a language model streams an answer."""
        if document in self.writing:
            raise Reject("the server is writing already")
        self.writing.add(document)
        self.set_presence("server", {"id": "server", "name": "The server", "document": document})
        try:
            self.append(f"/documents/{document}/body", "\n\n")
            for word in re.findall(r"\s*\S+", STORY.read_text("utf-8")):
                self.append(f"/documents/{document}/body", word)
                await asyncio.sleep(PAUSE)
        except Conflict:
            pass  # The document was deleted.
        finally:
            self.writing.discard(document)
            self.set_presence("server", None)


app = Plait(Pad, static=PAGES)
