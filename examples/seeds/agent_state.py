"""AgentState: one agent for all users. Each session stores everything that the agent needs after a restart.

    await app.run("harness", "Hi", user_id="alice", session_id="s1", attributes=[Tenant("tenant-7")])

Requests of one session are answered one after the other, requests of different sessions at the same time.
"""

from msgspec import Struct
from msgspec.structs import replace

from plait import Context, Interrupted, Plait, Thread

from .model import Message, stream


class AgentState(Struct, frozen=True):
    """The state of a session."""

    context: tuple[Message, ...] = ()
    summary: str = ""
    # The tasks that the agent still has to do.
    tasks: tuple[str, ...] = ()


class Harness(Thread[AgentState]):
    """One session of one user."""

    initial_state = AgentState()

    def say(self, role: str, content: str) -> None:
        """Add a message."""
        message = Message("user" if role == "user" else "assistant", content)
        self.set_state(lambda state: replace(state, context=(*state.context, message)))


class Tenant(Struct, frozen=True):
    """The tenant for whom a request is made; it is not stored in the session."""

    id: str


app = Plait(Harness)


@app.agent("harness", thread=Harness)
async def harness(ctx: Context[Harness], message: str) -> str:
    """Answer a message. An interrupt ends the answer early; the message of the interrupt becomes a task."""
    session = ctx.thread
    session.say("user", message)
    tenant = ctx.get(Tenant)
    answer = f"[{tenant.id}] " if tenant else ""
    try:
        async for word in stream(session.state.context):
            answer += word
            await ctx.checkpoint()
    except Interrupted as interrupted:
        told = (str(interrupted.message),) if interrupted.message else ()
        session.set_state(lambda state: replace(state, summary=f"{message}: interrupted", tasks=(*state.tasks, *told)))
    session.say("assistant", answer)
    return answer
