"""What only makes the models fast: nothing here changes a result."""
