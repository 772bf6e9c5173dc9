"""Room: measurements become verdicts and findings. Pure functions, no process, no file."""
