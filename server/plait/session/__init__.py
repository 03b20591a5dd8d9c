"""One socket's conversation with a thread, a file a protocol. No I/O."""
