"""Memory: peaks, headroom, and the ladder of ways to make the job fit."""
