"""Training Scaling: the same work on more nodes, and where the time goes."""
