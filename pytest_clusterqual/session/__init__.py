"""Finds the nodes, keeps their ranks warm, runs jobs on them, and tells who failed. No pytest, no judging."""
