"""The tools of a prompt, except its subagents and those of servers, as its model sees them."""

from collections.abc import Mapping
from typing import Any, Final

from plait.agents.execution.definitions import AnyTool, Handoff, Mcp, Prompt, PromptTool, Subagent
from plait.agents.execution.registry import Execution
from plait.agents.execution.tools import NO_ARGUMENTS, Tool, ToolSpec

__all__ = ["describe_tools"]

# The arguments of a prompt.
_QUESTION: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"message": {"type": "string", "minLength": 1}},
    "required": ["message"],
    "additionalProperties": False,
}


def describe_tools(execution: Execution, prompt: Prompt) -> list[ToolSpec]:
    """Return the tools of a prompt as a model sees them."""
    tools = {name: each for name, each in prompt.tools.items() if not isinstance(each, Subagent | Mcp)}
    return [_describe(execution, name, each) for name, each in tools.items()]


def _describe(execution: Execution, name: str, tool: AnyTool) -> ToolSpec:
    match tool:
        case Tool():
            return ToolSpec(name, tool.description, tool.schema)
        case Handoff():
            agent = execution.load_agent(tool.agent)
            told = tool.description or f"Hand the conversation over to {agent.title or agent.name}. {agent.description}"
            return ToolSpec(name, told.strip(), NO_ARGUMENTS)
        case PromptTool():
            told = tool.description or f"Ask the prompt {tool.prompt}."
            return ToolSpec(name, told, _QUESTION)
        case Subagent() | Mcp():
            raise AssertionError(f"{name} is described with others of its kind")
