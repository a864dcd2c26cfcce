"""The handlers of all addresses."""
