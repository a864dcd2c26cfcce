"""How many nodes to rent: small policies beside the one that allocates GPUs, a file for each."""
