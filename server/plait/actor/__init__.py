"""One awake thread: its class, turns, connections and rpcs."""
