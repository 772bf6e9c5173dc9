"""What the commands have in common: options that pytest has, too, the project file found here, the terminal's width."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from pytest_clusterqual.options import PROJECT_FILE, from_environment

PROJECT_FILES = (Path(PROJECT_FILE), Path("qualification", PROJECT_FILE))


def add_option(command: argparse.ArgumentParser, name: str, **how: Any) -> None:
    """An option that pytest has, too; left out, the same variable of the environment stands for it."""
    command.add_argument(name, default=from_environment(name), **how)


def add_project_file(command: argparse.ArgumentParser) -> None:
    """The option that `file_of` reads."""
    add_option(command, "--qual-config", type=Path, metavar="FILE", help="project file (default: the one found here)")


def file_of(arguments: argparse.Namespace) -> Path | None:
    """The project file that was named, else the one that is here; None if there is none."""
    return arguments.qual_config or next(filter(Path.is_file, PROJECT_FILES), None)


def width(fallback: int) -> int:
    """Columns of the terminal, `fallback` where there is none."""
    return shutil.get_terminal_size((fallback, 24)).columns
