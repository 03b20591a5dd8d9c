"""HTTP: uvicorn's protocol class with limits, and the routes of a thread."""
