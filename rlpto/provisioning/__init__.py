"""Decide how many nodes to rent: one file for each rule."""
