"""The PPO agent: its network, its training, and the trained agent as a policy."""
