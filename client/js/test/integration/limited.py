"""The app of the tests, which takes no more of a client than any app does."""

from app import Note

from plait import Plait

app = Plait(Note)
