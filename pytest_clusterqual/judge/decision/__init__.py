"""The decision: several nodes or not, from the records of a run alone."""
