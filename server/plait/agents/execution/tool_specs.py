"""The tools of a prompt, except its subagents and those of servers, as its model sees them."""

from collections.abc import Mapping
from typing import Any, Final

from plait.agents.execution.definitions import Handoff, Prompt, PromptTool
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
    specs: list[ToolSpec] = []
    for name, each in prompt.tools.items():
        match each:
            case Tool():
                specs.append(ToolSpec(name, each.description, each.schema))
            case Handoff():
                agent = execution.agents[each.agent]
                told = f"Hand the conversation over to {agent.title or agent.name}. {agent.description}".strip()
                specs.append(ToolSpec(name, each.description or told, NO_ARGUMENTS))
            case PromptTool():
                specs.append(ToolSpec(name, each.description or f"Ask the prompt {each.prompt}.", _QUESTION))
    return specs
