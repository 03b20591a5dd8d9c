"""One socket's conversation with a thread, in each protocol. No I/O."""
