"""Writing the suite that sites run, for `clusterqual init`. Nothing is ever overwritten."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from pytest_clusterqual.errors import ClusterQualError

_HERE = Path(__file__).parents[1]
# In an installed package the suite is part of it (pyproject.toml); in a checkout it stands beside the package.
_SUITES = (_HERE / "suite", _HERE.parent / "qualification")


def suite() -> dict[str, str]:
    """The suite's Python files, by name.

    Raises:
        ClusterQualError: this installation has none.
    """
    for folder in _SUITES:
        if files := sorted(folder.glob("*.py")):
            return {file.name: file.read_text(encoding="utf-8") for file in files}
    raise ClusterQualError(f"the suite is not in {' or '.join(map(str, _SUITES))}; install pytest-clusterqual again")


def check_free(folder: Path, names: Mapping[str, str]) -> None:
    """Nothing of these names may be in `folder`.

    Raises:
        ClusterQualError: names what is there.
    """
    if there := [str(folder / name) for name in names if (folder / name).exists()]:
        raise ClusterQualError(
            f"{', '.join(there)}: there already, and nothing is overwritten; remove or rename what is there, or name "
            "another folder"
        )


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write new files into `folder`, which is made where it is missing: all of them, or none.

    Raises:
        ClusterQualError: names the file that cannot be written.
    """
    file, made = folder, []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            file = folder / name
            with file.open("x", encoding="utf-8") as stream:
                made.append(file)
                stream.write(text)
    except OSError as error:
        for each in made:
            with contextlib.suppress(OSError):
                each.unlink()
        raise ClusterQualError(
            f"{file}: cannot be written: {error.strerror}; mend that or name another folder, nothing was written"
        ) from None
