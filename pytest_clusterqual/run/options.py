"""What the commands have in common: options that pytest has, too, the project file found here, the terminal's width."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

PROJECT_FILES = (Path("clusterqual.yaml"), Path("qualification/clusterqual.yaml"))


def add_option(command: argparse.ArgumentParser, name: str, **how: Any) -> None:
    """An option that pytest has, too; left out, the same variable of the environment stands for it."""
    variable = "CLUSTERQUAL_" + name.removeprefix("--").removeprefix("qual-").upper().replace("-", "_")
    command.add_argument(name, default=os.environ.get(variable) or None, **how)


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


def width(fallback: int) -> int:
    """Columns of the terminal, `fallback` where there is none."""
    return shutil.get_terminal_size((fallback, 24)).columns
