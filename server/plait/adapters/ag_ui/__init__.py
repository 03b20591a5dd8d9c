"""Agents of an app for clients of AG-UI 1.0, over server-sent events."""

from plait.adapters.ag_ui.endpoint import AgUi
from plait.adapters.ag_ui.run import ask, emit

__all__ = ["AgUi", "ask", "emit"]
