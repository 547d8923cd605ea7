"""The other systems of the paper's table 1, one file each."""
