"""A long run over time: drift, changes, stalls, ranks that hold the others up again and again."""
