"""What is done with a run folder alone: judge again, decide, compare, merge, seal, verify, report. No pytest."""
