"""Keeps the ranks of the nodes warm, runs jobs on them, and tells who failed. No pytest, no judging."""
