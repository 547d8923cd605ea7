"""The other systems of table 1, one file to each kind."""
