"""The agents, prompts and models that the threads of one class execute, by name, checked when the app is made."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, Final, TypeVar

from plait.actor.thread import Thread
from plait.agents.execution.definitions import (
    Agent,
    AnyTool,
    Handoff,
    Mcp,
    Model,
    Prompt,
    PromptTool,
    Receiver,
    Speaker,
    Subagent,
    find_tool,
)
from plait.agents.execution.hooks import has_hook, read_hooks
from plait.agents.execution.tools import CREATE, MESSAGE, NO_ARGUMENTS, Tool, ToolSpec
from plait.errors import NotFound
from plait.parts.env.env import Env
from plait.parts.env.secret import check_variable, make_secret
from plait.parts.messages.message_hooks import NO_HOOKS, MessageHooks
from plait.parts.messages.thread_messages import Messages, ThreadMessages
from plait.parts.part import find_parts, find_role, require_role
from plait.spelling import suggest

__all__ = ["Execution", "find_named"]

T = TypeVar("T", Agent, Prompt, Model)

# The arguments of a prompt.
_QUESTION: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"message": {"type": "string", "minLength": 1}},
    "required": ["message"],
    "additionalProperties": False,
}


class Execution:
    """The agents, prompts and models of one class of threads. Raises TypeError or ValueError if a name is missing."""

    def __init__(
        self,
        thread: type[Thread[Any]],
        *,
        agents: Iterable[Agent],
        prompts: Iterable[Prompt],
        models: Iterable[Model] = (),
    ) -> None:
        self.thread = thread
        self.agents = _by_name(Agent, agents)
        self.prompts = _by_name(Prompt, prompts)
        self.models = _by_name(Model, models)
        # The tools of all prompts, which `queue_tool` and `invoke_tool` find.
        self.tools: dict[str, AnyTool] = {}
        for prompt in self.prompts.values():
            self._check_prompt(prompt)
        for agent in self.agents.values():
            self._check_agent(agent)
        self._check_prefixes()
        # The hooks of all prompts and agents.
        defined: list[Prompt | Agent] = [*self.prompts.values(), *self.agents.values()]
        self.hooks = [hook for each in defined for hook in read_hooks(each.hooks)]
        self.most_history = max((each.history for each in self.prompts.values()), default=0)

    def check_parts(self) -> None:
        """Check that the class has the parts that a run needs. Raises TypeError."""
        if self._find_part().hooks != NO_HOOKS and any(has_hook(name, self.hooks) for name in MessageHooks._fields):
            raise TypeError(f"{self.thread.__name__} has hooks of its messages, and its agents have, too")

    def find_speaker(self, agent: str, side: Receiver) -> Speaker:
        """Return a side of an agent, with its prompt; an agent with one side has only A.

        If the agent was removed after its name was stored, the agent of the messages takes its place.
        """
        found = self.agents.get(agent) or self.agents[self._find_part().agent or ""]
        letter = "a" if found.b is None else side
        return Speaker(found, letter, self.prompts[found.side(letter).prompt])

    def find_messages(self, thread: Thread[Any]) -> ThreadMessages:
        """Return the messages of a thread."""
        return self._find_part().of(thread._actor)

    def load_model(self, name: str) -> Model:
        """Return a model; a name without a definition is the id of a model, such as "openai:gpt-5". Raises NotFound."""
        if name not in self.models and ":" in name:
            return Model(name, name)
        return find_named("model", self.models, name)

    def find_tool(self, name: str) -> AnyTool:
        """Return a tool of any prompt. Raises NotFound."""
        if (found := find_tool(self.tools, name)) is not None:
            return found
        raise NotFound(f"there is no tool named {name!r}{suggest(name, self.tools)}")

    def describe_tools(self, prompt: Prompt) -> list[ToolSpec]:
        """Return the tools of a prompt, except its subagents and the tools of servers, as its model sees them."""
        specs: list[ToolSpec] = []
        for name, each in prompt.tools.items():
            match each:
                case Tool():
                    specs.append(ToolSpec(name, each.description, each.schema))
                case Handoff():
                    agent = self.agents[each.agent]
                    told = f"Hand the conversation over to {agent.title or agent.name}. {agent.description}".strip()
                    specs.append(ToolSpec(name, each.description or told, NO_ARGUMENTS))
                case PromptTool():
                    specs.append(ToolSpec(name, each.description or f"Ask the prompt {each.prompt}.", _QUESTION))
        return specs

    def check_subagents(self, executions: Mapping[type[Thread[Any]], "Execution"]) -> None:
        """Check that the subagents' classes of threads have the agents that answer. Raises NotFound."""
        for name, each in self.tools.items():
            if isinstance(each, Subagent):
                agents = executions[each.thread].agents if each.thread in executions else {}
                where = f"the tool {name!r}: {each.thread.__name__}: "
                find_named("agent", agents, each.agent, where).side(each.receives)

    def check_tools(self) -> None:
        """Check that all tools can be executed. Raises TypeError."""
        for name, each in self.tools.items():
            if isinstance(each, Subagent):
                roles = ("family", "env") if each.variables else ("family",)
                for cls, role in product((self.thread, each.thread), roles):
                    require_role(cls, role)
                if each.optional:
                    require_role(self.thread, "env")
                    check_variable(each.optional)
                _check_variables(name, each)
            if isinstance(each, Mcp) and each.variables:
                require_role(self.thread, "env")

    def _find_part(self) -> Messages:
        """Return the messages of the threads, whose queue one of the agents takes. Raises TypeError."""
        found = [each for each in find_parts(self.thread).values() if isinstance(each, Messages) and each.agent]
        if len(found) > 1:
            names = " and ".join(each.name for each in found)
            raise TypeError(f"{self.thread.__name__} may have one Messages with an agent, and has {names}")
        if not found or found[0].agent not in self.agents:
            agents = " or ".join(f"`messages = Messages(agent={name!r})`" for name in self.agents)
            raise TypeError(f"{self.thread.__name__} needs {agents or 'an agent'}")
        return found[0]

    def _check_prompt(self, prompt: Prompt) -> None:
        where = f"the prompt {prompt.name!r}: "
        _check_env(prompt.env)
        if prompt.model not in self.models and ":" not in prompt.model:
            find_named("model", self.models, prompt.model, where)
        for name, each in prompt.tools.items():
            if isinstance(each, Handoff) and find_named("agent", self.agents, each.agent, where).b is not None:
                raise ValueError(
                    f"{where}{each.agent!r} has two sides, and no thread is handed over to it: use Subagent"
                )
            if isinstance(each, PromptTool):
                find_named("prompt", self.prompts, each.prompt, where)
            if self.tools.setdefault(name, each) != each:
                raise ValueError(f"{where}another prompt has a different tool named {name!r}")

    def _check_prefixes(self) -> None:
        """Raise ValueError if a tool has a name that a server may give to one of its own."""
        lenders = [each for each in self.tools.values() if isinstance(each, Mcp)]
        for mcp, name in product(lenders, (*self.tools, CREATE, MESSAGE)):
            if name.startswith(mcp.prefix):
                raise ValueError(f"{name!r} may be the name of a tool of the Mcp {mcp.name!r}: rename one of them")

    def _check_agent(self, agent: Agent) -> None:
        _check_env(agent.env)
        for letter, side in agent.sides.items():
            where = f"side {letter} of the agent {agent.name!r}: "
            prompt = find_named("prompt", self.prompts, side.prompt, where)
            for option, name in side.stops.items():
                if name not in prompt.tools:
                    raise ValueError(f"{where}{option} is {name!r}, but the prompt {prompt.name!r} has no such tool")


def _check_variables(name: str, tool: Subagent) -> None:
    env = find_role(tool.thread, "env")
    for each in tool.variables:
        check_variable(each.name, each.type)
        if each.scoped and (not isinstance(env, Env) or each.name not in env.scoped):
            what = f"the tool {name!r}: the variable {each.name} is scoped, and would be handed down"
            raise ValueError(f"{what}: {tool.thread.__name__} needs `Env(scoped={{{each.name!r}}})`")


def _check_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        check_variable(name)
        make_secret(value)


def _by_name(type: type[T], found: Iterable[T]) -> dict[str, T]:
    named: dict[str, T] = {}
    for each in found:
        if not isinstance(each, type):
            raise TypeError(f"{each!r} is no {type.__name__}")
        if not each.name:
            raise ValueError(f"{type.__name__}(name=…) must not be empty")
        if each.name in named:
            raise ValueError(f"there are two {type.__name__.lower()}s named {each.name!r}")
        named[each.name] = each
    return named


def find_named(what: str, named: Mapping[str, T], name: str, where: str = "") -> T:
    """Return a definition by its name. Raises NotFound."""
    if (found := named.get(name)) is not None:
        return found
    raise NotFound(f"{where}there is no {what} named {name!r}{suggest(name, named)}")
