"""A state of an agent in AgentScope for Java, and the same in AgentScope for Python."""

from typing import Any

__all__ = ["LOADED", "make_state"]


def make_state(user: str | None, session: str) -> dict[str, Any]:
    """Return the state of an agent, as AgentScope for Java makes it JSON."""
    call = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}, "content": None, "state": "finished"}
    output = [{"type": "text", "text": "3"}]
    result = {"type": "tool_result", "id": "c1", "name": "add", "output": output, "metadata": {}, "state": "success"}
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png", "mime_type": "image/png"}}
    sound = {"type": "audio", "source": {"type": "base64", "media_type": "audio/wav", "data": "AA=="}}

    def message(id: str, role: str, name: str | None, *content: dict[str, Any]) -> dict[str, Any]:
        made = {"id": id, "name": name, "role": role, "content": content, "metadata": {}, "usage": None}
        return {**made, "timestamp": "2026-11-01 10:00:00.000"}

    return {
        "session_id": session,
        "user_id": user,
        "summary": "They add.",
        "context": [
            message("m1", "USER", "Ada", {"type": "text", "text": "1 + 2?"}, image, sound),
            message("m2", "ASSISTANT", "Bot", {"type": "thinking", "thinking": "Hm", "metadata": None}, call),
            message("m3", "TOOL", None, result),
        ],
        "reply_id": "r1",
        "cur_iter": 2,
        "shutdown_interrupted": False,
        "permission_context": {"mode": "DEFAULT"},
    }


# What `AgentState` of AgentScope for Python is made of.
LOADED = {
    "session_id": "s1",
    "summary": "They add.",
    "reply_id": "r1",
    "cur_iter": 2,
    "context": [
        {
            "id": "m1",
            "name": "Ada",
            "role": "user",
            "content": [
                {"type": "text", "text": "1 + 2?"},
                {
                    "type": "data",
                    "source": {"type": "url", "url": "https://example.com/a.png", "media_type": "image/png"},
                },
                {"type": "data", "source": {"type": "base64", "media_type": "audio/wav", "data": "AA=="}},
            ],
        },
        {
            "id": "m2",
            "name": "Bot",
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm"},
                {"type": "tool_call", "id": "c1", "name": "add", "input": '{"a":1}', "state": "finished"},
            ],
        },
        {
            "id": "m3",
            "name": "assistant",
            "role": "assistant",
            "content": [
                {
                    "type": "tool_result",
                    "id": "c1",
                    "name": "add",
                    "output": [{"type": "text", "text": "3"}],
                    "metadata": {},
                    "state": "success",
                }
            ],
        },
    ],
}
