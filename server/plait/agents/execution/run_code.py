"""`RunCode`, a tool by which a model runs a program that calls other tools."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from plait.actor.thread import Thread
from plait.agents.execution.tools import Tool, ToolResult
from plait.code.javascript import MEMORY, find_deno
from plait.errors import CallFailed
from plait_schemas.codec import encode_json

__all__ = ["RunCode"]


class RunCode(Tool):
    """A tool by which a model runs a program in TypeScript, which may call the tools in `imports`.

    Its result is the outcome of the program and its log. After a crash, the program does not run again, as its calls
    may have had their effects. Raises TypeError and ValueError for a tool that a program cannot call: only functions,
    and none that need approval. Raises ModuleNotFoundError without the extra `plait[code]`.
    """

    def __init__(
        self,
        imports: Sequence[Tool] = (),
        *,
        name: str = "run_code",
        description: str = "Run a program in TypeScript. Its default export is its result.",
        timeout: float | None = 60.0,
        memory_limit: float = MEMORY,
    ) -> None:
        find_deno()
        for each in imports:
            if not isinstance(each, Tool) or isinstance(each, RunCode):
                raise TypeError(f"a program cannot call {each!r}: imports must be functions with @tool")
            if each.needs_approval:
                raise ValueError(f"a program cannot call {each.name!r}, as it needs approval")
        if len({each.name for each in imports}) < len(imports):
            raise ValueError("two tools that a program can call have the same name")
        self.imports = tuple(imports)
        self.memory_limit = memory_limit
        self.seconds = timeout
        super().__init__(self._make(), name=name, description="\n".join([description, *map(_describe, self.imports)]))

    def _make(self) -> Callable[..., Awaitable[ToolResult]]:
        async def run_code(thread: Thread[Any], source: str) -> ToolResult:
            files: list[str] = []
            tools = {each.name: partial(_call, thread, each, files) for each in self.imports}
            result = await thread.run_code(
                source, imports={"tools": tools}, timeout=self.seconds, memory_limit=self.memory_limit
            )
            return ToolResult(encode_json(result).decode(), files, is_error=result.status != "success")

        return run_code


async def _call(thread: Thread[Any], tool: Tool, files: list[str], arguments: Any = None) -> Any:
    """Call a tool for a program, and return its result. Raises CallFailed for a result that is an error."""
    result = await tool.invoke(thread, encode_json({} if arguments is None else arguments))
    if not isinstance(result, ToolResult):
        return result
    if result.is_error:
        raise CallFailed(result.text)
    files.extend(result.attachments)
    return result.text


def _describe(tool: Tool) -> str:
    name, schema = tool.name, encode_json(tool.schema).decode()
    return f'import {{ {name} }} from "tools": await {name}(arguments). {tool.description} Arguments: {schema}'
