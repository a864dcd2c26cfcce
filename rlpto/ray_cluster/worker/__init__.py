"""The worker: one GPU's training process."""
