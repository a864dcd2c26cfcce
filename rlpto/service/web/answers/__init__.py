"""What the API answers, typed."""
