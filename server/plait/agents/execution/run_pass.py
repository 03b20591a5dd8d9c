"""One pass of a run in memory: what its steps work with."""

from typing import Any

from plait.agents.context import Context
from plait.agents.execution.mcp_servers import McpServers
from plait.agents.execution.registry import Execution
from plait.agents.execution.run_history import RunHistory
from plait.agents.execution.state import ExecutionState

__all__ = ["RunPass"]


class RunPass:
    """The definitions, the thread and the steps of a run, with what this pass has read and opened."""

    def __init__(self, execution: Execution, ctx: Context[Any]) -> None:
        self.execution = execution
        self.thread = ctx.thread
        self.step = ctx.step
        self.messages = execution.find_messages(ctx.thread)
        self.history = RunHistory(self.messages, ctx.step.begun_at, execution.most_history)
        self.state = ExecutionState(self.messages, ctx.step)
        self.servers = McpServers(ctx.thread)
