"""Qualify GPU clusters for distributed training, as a pytest suite.

Importing this package costs nothing: it pulls in no third-party module.
"""

__version__ = "0.1.0"
