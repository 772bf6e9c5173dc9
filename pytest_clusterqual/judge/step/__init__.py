"""A training step taken apart, by measuring it in parts or from traces."""
