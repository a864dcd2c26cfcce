"""Agents: learning from whole windows, or by PPO from decisions, and the trained agent as a policy."""
