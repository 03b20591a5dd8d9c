"""The door for `useChat` of the AI SDK: the messages of a thread as its UI messages."""
