"""Accuracy of trained networks."""
