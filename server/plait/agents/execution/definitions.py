"""The models, prompts, sides and agents of an execution, as their author defines them."""

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final, Literal, NamedTuple

from msgspec.structs import force_setattr

from plait.actor.thread import Thread
from plait.agents.execution.tools import Checked, Tool, Variable, check_timeouts, check_tool_name, check_type

__all__ = [
    "Agent",
    "AnyTool",
    "Handoff",
    "Mcp",
    "Model",
    "Prompt",
    "PromptTool",
    "Receiver",
    "Side",
    "Speaker",
    "Subagent",
    "find_tool",
]

# A variable in a header, or in the environment of a process.
_VARIABLE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")

Receiver = Literal["a", "b"]
"""The side of an agent that answers a message."""


class Model(Checked, frozen=True):
    """A model by the name that prompts use: its id, such as `"openai:gpt-5"`, or a model of pydantic-ai.

    When the model fails, each `fallback` is tried in order. `settings` are those of pydantic-ai, such as `temperature`.
    Each is attempted `attempts` times. An attempt fails if its first chunk takes longer than `first_chunk` seconds, or
    a later one longer than `next_chunk`.
    """

    name: str
    model: Any
    fallback: Sequence[Any] = ()
    settings: Mapping[str, Any] = {}
    attempts: int = 2
    first_chunk: float = 120.0
    next_chunk: float = 45.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.attempts >= 1 and self.first_chunk > 0 and self.next_chunk > 0):
            raise ValueError(f"the model {self.name!r} needs at least one attempt, and time for its chunks")


class NamedTool(Checked, frozen=True, kw_only=True):
    """A tool that has the name of its agent or prompt, which is its first field, unless another one is given."""

    name: str = ""
    description: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        force_setattr(self, "name", check_tool_name(self.name or getattr(self, self.__struct_fields__[0])))


class Handoff(NamedTool, frozen=True):
    """A tool by which a prompt hands the thread over to another agent, which keeps the history."""

    agent: str


class Subagent(NamedTool, frozen=True):
    """A tool by which a prompt has an agent work in a thread of its own, a child of the prompt's thread.

    The model waits for the result of a `blocking` one. At most `max_instances` live at once, and there is none in a
    thread that is itself `max_depth` subagents deep. A `resumable` one stays after its report, and gets further
    messages, which its side `receives`. An `immediate` one begins before the first step. An `optional` one is a tool
    only if the variable with this name is "true", "1" or "yes". With `report` False, the child reports by
    `family.notify_parent` alone. `variables` are the variables that the child must have.
    """

    agent: str
    thread: type[Thread[Any]]
    blocking: bool = True
    resumable: bool = False
    max_instances: int | None = None
    max_depth: int = 5
    immediate: bool = False
    optional: str = ""
    receives: Receiver = "a"
    report: bool = True
    variables: Sequence[Variable] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blocking and not self.report:
            raise ValueError(f"report=False of {self.name!r} is for a subagent that does not block")
        if self.max_instances is not None and self.max_instances < 1:
            raise ValueError(f"max_instances of {self.name!r} must be at least 1, not {self.max_instances!r}")
        if self.max_depth < 1:
            raise ValueError(f"max_depth of {self.name!r} must be at least 1, not {self.max_depth!r}")


class PromptTool(NamedTool, frozen=True):
    """A tool that answers by one step of another prompt: it gets the model's `message`, and its calls are carried out.

    Its messages are below the result of the call, and the calling model never sees them.
    """

    prompt: str


class Mcp(Checked, frozen=True):
    """The tools of an MCP server, under names that begin with `name` and an underscore.

    `server` is a URL, for Streamable HTTP, or the words of a command, whose process speaks over stdio. In the values of
    `headers`, and of `env`, the environment of that process, a name in braces stands for a variable of the thread's
    `env`: `{"Authorization": "Bearer {GITHUB_TOKEN}"}`. `tools` are the names of the tools that are lent; without them,
    all are. With `needs_approval`, a person must approve each call within `approval_timeout` seconds. A call may take
    `timeout` seconds. Raises ModuleNotFoundError without the extra `plait[mcp]`.
    """

    server: str | Sequence[str]
    name: str
    headers: Mapping[str, str] = {}
    env: Mapping[str, str] = {}
    tools: Sequence[str] = ()
    needs_approval: bool = False
    approval_timeout: float | None = None
    timeout: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tool_name(self.name)
        check_tool_name(self.connect)
        if find_spec("mcp") is None:
            raise ModuleNotFoundError("Mcp needs an extra: pip install 'plait[mcp]'", name="mcp")
        is_url = isinstance(self.server, str)
        if not self.server or (is_url and not str(self.server).startswith(("http://", "https://"))):
            raise ValueError(f"the server of the Mcp {self.name!r} must be a URL, or a list of the words of a command")
        if (self.headers and not is_url) or (self.env and is_url):
            raise ValueError(f"the Mcp {self.name!r}: headers are for a URL, and env is for a command")
        check_timeouts(f"the Mcp {self.name!r}", timeout=self.timeout, approval_timeout=self.approval_timeout)

    @property
    def prefix(self) -> str:
        """The beginning of the names of its tools."""
        return f"{self.name}_"

    @property
    def connect(self) -> str:
        """The name of the tool that replaces the tools of an unreachable server."""
        return f"{self.prefix}connect"

    @property
    def variables(self) -> set[str]:
        """The names of the variables in its headers and its environment."""
        return {name for value in (*self.headers.values(), *self.env.values()) for name in _VARIABLE.findall(value)}

    def fill(self, texts: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
        """Return headers, or an environment, with the values of variables."""
        return {name: _VARIABLE.sub(lambda found: variables[found[1]], text) for name, text in texts.items()}


AnyTool = Tool | Handoff | Subagent | PromptTool | Mcp
"""A tool of a prompt."""


def find_tool(tools: Mapping[str, AnyTool], name: str) -> AnyTool | None:
    """Return a tool by the name that a model calls; for a tool that an MCP server may lend, return the Mcp."""
    lenders = (each for each in tools.values() if isinstance(each, Mcp) and name.startswith(each.prefix))
    return tools.get(name) or next(lenders, None)


class Prompt:
    """The instructions for a model and its tools: a text, or a function of the thread that returns one, and tools.

    `history` is the number of messages that the model is shown, besides those of the run. `hooks` are the hooks of its
    steps; a prompt without hooks uses those of the agent. `env` holds the values of variables that no other layer has.
    With `thoughts`, people see what the model thinks, as it comes: messages named "reasoning", nested in its answers.
    """

    def __init__(
        self,
        name: str,
        text: str | Callable[[Any], Any],
        model: str,
        tools: Sequence[AnyTool] = (),
        *,
        env: Mapping[str, str] = {},
        hooks: Any = None,
        history: int = 200,
        settings: Mapping[str, Any] = {},
        thoughts: bool = False,
    ) -> None:
        if not (isinstance(text, str) or callable(text)):
            raise TypeError(f"the text of the prompt {name!r} must be a str or a function, not {text!r}")
        check_type("Prompt(name=…)", name, str)
        check_type("Prompt(model=…)", model, str)
        check_type("Prompt(env=…)", env, Mapping[str, str])
        check_type("Prompt(history=…)", history, int)
        check_type("Prompt(settings=…)", settings, Mapping[str, Any])
        check_type("Prompt(thoughts=…)", thoughts, bool)
        if history < 1:
            raise ValueError(f"history of the prompt {name!r} must be at least 1, not {history!r}")
        self.name = name
        self.text = text
        self.model = model
        self.tools: dict[str, AnyTool] = {}
        for each in tools:
            if not isinstance(each, AnyTool):
                what = (
                    "use @tool for a function"
                    if callable(each)
                    else "it must be a Tool, Handoff, Subagent, PromptTool or Mcp"
                )
                raise TypeError(f"{each!r} is no tool of the prompt {name!r}: {what}")
            if each.name in self.tools:
                raise ValueError(f"the prompt {name!r} has two tools named {each.name!r}")
            self.tools[each.name] = each
        self.env = dict(env)
        self.hooks = hooks
        self.history = history
        self.settings = dict(settings)
        self.thoughts = thoughts


class Side(Checked, frozen=True):
    """One side of an agent: its prompt, and the conditions that end its turn or the session.

    A text without calls ends the turn, with `stop_on_response`, and so does a call of `stop_tool`. A successful call of
    `session_stop` or `session_fail` ends the session, and its result is the agent's report. `max_steps` limits the
    side's steps in a session.
    """

    prompt: str
    label: str = ""
    stop_on_response: bool = True
    stop_tool: str = ""
    session_stop: str = ""
    session_fail: str = ""
    max_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_steps is not None and self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, not {self.max_steps!r}")

    @property
    def stops(self) -> dict[str, str]:
        """The tools that end the turn or the session, by the option that names them."""
        names = ("stop_tool", "session_stop", "session_fail")
        return {name: getattr(self, name) for name in names if getattr(self, name)}


class Agent(Checked, frozen=True):
    """An agent: side A answers people, or talks with side B, if there is one, until one of them ends the session."""

    name: str
    a: Side
    b: Side | None = None
    title: str = ""
    description: str = ""
    env: Mapping[str, str] = {}
    hooks: Any = None
    max_session_turns: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_session_turns is not None and (self.b is None or self.max_session_turns < 1):
            what = "must be at least 1" if self.b is not None else "is for agents with two sides"
            raise ValueError(f"max_session_turns of the agent {self.name!r} {what}, not {self.max_session_turns!r}")

    def side(self, side: Receiver) -> Side:
        """Return a side. Raises ValueError for B of an agent without it."""
        found = self.a if side == "a" else self.b
        if found is None:
            raise ValueError(f"the agent {self.name!r} has no side {side!r}")
        return found

    @property
    def sides(self) -> dict[Receiver, Side]:
        """The sides of this agent."""
        return {"a": self.a} if self.b is None else {"a": self.a, "b": self.b}


class Speaker(NamedTuple):
    """A side of an agent that answers, with its prompt."""

    agent: Agent
    letter: Receiver
    prompt: Prompt

    @property
    def side(self) -> Side:
        """The side, which says how its turns end."""
        return self.agent.side(self.letter)
