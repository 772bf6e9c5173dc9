"""What the options of pytest and those of the `clusterqual` command have in common. Loads in every pytest run."""

from __future__ import annotations

import argparse
import os

PROJECT_FILE = "clusterqual.yaml"


def from_environment(name: str) -> str | None:
    """The variable that stands for an option left out: ``CLUSTERQUAL_HOSTS`` for ``--qual-hosts`` and so on."""
    variable = "CLUSTERQUAL_" + name.removeprefix("--").removeprefix("qual-").upper().replace("-", "_")
    return os.environ.get(variable) or None


def positive(text: str) -> int:
    """A positive whole number, for argparse.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"want a positive whole number, got {text!r}")
    return int(text)


def tolerance(text: str) -> float:
    """A share such as ``5 %``, for argparse.

    Raises:
        ArgumentTypeError: it is none.
    """
    from pytest_clusterqual import units

    try:
        share = units.parse(text, units.RATIO)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, want a share below 100 %")
    return share
