"""HTTP: uvicorn's protocol class with bounds, and the routes of a thread."""
