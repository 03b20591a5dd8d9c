"""The conversation of a thread: its messages, what is queued for its agent, and what an agent is writing."""
