"""The conversation of a thread: the history, the queue for its agent, and messages that are being written."""
