"""The threads that are awake in this process, and handles to them."""
