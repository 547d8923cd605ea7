"""From disk to the device: readers, words, packed arrays, batches."""
