"""The queue: jobs in SQLite, the process that owns them, and what reckons with them. `service` is its door."""
