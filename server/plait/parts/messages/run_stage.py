"""The stage of a run of an agent, with the facts of the run that the messages of its thread need."""

from collections.abc import Collection

from plait.parts.stage import Stage

__all__ = ["RunStage", "RunningAttempt"]


class RunningAttempt:
    """An attempt at a queue."""

    def __init__(self) -> None:
        # The last position in the queue that its run has taken, and whether it has streamed.
        self.taken_until = 0
        self.has_streamed = False
        # The ids of the users whose messages its run answers.
        self.users: Collection[str] = ()
        # Whether its run is interrupted when it begins, if it has not.
        self.is_interrupted = False


class RunStage(Stage):
    """The stage of a run."""

    # The attempt at a queue that the run is; None for other runs.
    attempt: RunningAttempt | None = None
    # The names of the tools that the client of the run has, whose calls it answers.
    client_tools: Collection[str] = ()
    # The ids of the users that have sent the messages which it took last, from one commit to the next.
    senders: Collection[str | None] = ()
