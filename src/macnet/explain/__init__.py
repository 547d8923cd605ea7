"""Asking a trained network about images, and showing what it attends to."""
