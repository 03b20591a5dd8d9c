"""AgentState: one agent for all users, whose sessions keep everything that makes it restartable.

    await app.run("harness", "Hi", user_id="alice", session_id="s1", attributes=[Tenant("tenant-7")])

Requests of one session are answered one after the other, those of others at the same time, on whichever node.
"""

from msgspec import Struct
from msgspec.structs import replace

from plait import Context, Interrupted, Plait, Thread

from .model import Message, stream


class AgentState(Struct, frozen=True):
    """What a session has."""

    context: tuple[Message, ...] = ()
    summary: str = ""
    # What the agent has to do, by itself or because it was told to.
    tasks: tuple[str, ...] = ()


class Harness(Thread[AgentState]):
    """One session of one user."""

    initial_state = AgentState()

    def say(self, role: str, content: str) -> None:
        """Add a message."""
        message = Message("user" if role == "user" else "assistant", content)
        self.set_state(lambda state: replace(state, context=(*state.context, message)))


class Tenant(Struct, frozen=True):
    """For whom a request is made; no session keeps it."""

    id: str


app = Plait(Harness)


@app.agent("harness", thread=Harness)
async def harness(ctx: Context[Harness], message: str) -> str:
    """Answer a message. An interrupt ends it with what it has, and its message is the next thing to do."""
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
