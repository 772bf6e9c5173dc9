"""Nodes: all alike, as promised, and none at fault in itself."""
