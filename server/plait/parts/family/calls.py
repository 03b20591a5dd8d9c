"""Gives the reports of children to the runs of the parent that wait for them, or to its messages."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from plait.actor.actor import Actor
from plait.parts.family.rows import Report
from plait.parts.family.store import FamilyStore
from plait.parts.part import find_role

__all__ = ["RESULT", "answer_calls", "end_calls"]

RESULT: Final = "plait:result:"
"""The event of a report for a run that waits for it: this, and the id of the call."""

_GONE: Final = "The subagent has ended without a result:"


def answer_calls(
    actor: Actor, store: FamilyStore, child: str, report: Report, attachments: Sequence[Mapping[str, str]] = ()
) -> None:
    """Send a report to the runs that wait for it, or else add it to the messages, in an open transaction."""
    row = store.rows[child]
    answered = [id for id in row.calls if report.calls is None or id in report.calls]
    calls = {id: run for id, run in row.calls.items() if id not in answered}
    known = row.child
    if known.is_live and not calls:
        known = replace(known, status="idle")
    store.write({child: replace(row, child=known, calls=calls)})
    if not answered and report.calls != []:  # The child reports unasked, or the calls were cancelled.
        return
    data = {
        "text": report.text,
        "is_error": report.is_error,
        "attachments": [each["path"] for each in attachments],
    }
    tasks = find_role(actor.kind.cls, "tasks")
    waiting = [(row.calls[id], RESULT + id) for id in answered if row.calls[id]]
    if tasks is not None and [each for each in waiting if tasks.of(actor).deliver(*each, data).value]:
        return
    messages = find_role(actor.kind.cls, "messages")
    if messages is not None and known.parent_communication != "explicit":
        said = "has failed" if report.is_error else "reports"
        content = f"The subagent {child} {said}:\n{report.text}"
        body = {"role": "user", "content": content, "silent": True, "subagent_id": child, "attachments": attachments}
        messages.take_item(actor, body)


def end_calls(actor: Actor, store: FamilyStore, child: str, reason: str) -> None:
    """Answer the open calls of a child that will not answer, in an open transaction."""
    if (row := store.rows.get(child)) is not None and row.calls:
        answer_calls(actor, store, child, Report(f"{_GONE} {reason}", is_error=True))
