"""Gymnasium environments over any cluster."""
