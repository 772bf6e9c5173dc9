"""Fabric: collectives by size and group, expected levels, and who is at fault."""
