"""WebSockets: with a protocol class of our own under uvicorn, with ASGI messages under other servers."""
