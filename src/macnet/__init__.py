"""MAC networks, and the CLEVR world they reason about."""
