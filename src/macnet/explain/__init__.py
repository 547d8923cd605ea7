"""A trained network at work: asked about one picture, and watched while it thinks."""
