"""WebSockets: by a protocol class of plait under uvicorn, and by ASGI messages under other servers."""
