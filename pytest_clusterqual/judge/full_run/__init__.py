"""Full-Run: what is left once checkpoints, recovery and stalls are paid."""
