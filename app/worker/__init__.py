"""The worker: the engine in a process of its own, and the supervisor that starts, feeds and replaces it."""
