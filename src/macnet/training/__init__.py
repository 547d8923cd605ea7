"""From batches to a trained network."""
