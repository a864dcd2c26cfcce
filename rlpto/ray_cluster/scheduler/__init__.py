"""The scheduler of a real cluster: a plain process that decides, with a session database as its truth."""
