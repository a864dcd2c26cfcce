"""How many nodes to rent: a file for each way to decide it."""
