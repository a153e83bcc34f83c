"""Real agent frameworks against a server with the embedded model; see `run`."""
