"""WebSockets: under uvicorn by our own protocol class, elsewhere by ASGI."""
