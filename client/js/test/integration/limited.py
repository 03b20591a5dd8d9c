"""The apps of the tests that take only so much of a client: as much as any app does, and hardly anything."""

from app import Note

from plait import Limits, Plait

app = Plait(Note)
tight = Plait(Note, limits=Limits(messages_per_second=400, message_burst=75))
