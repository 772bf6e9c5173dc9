"""Room: a plan becomes processes, and every process that was started is ended."""
