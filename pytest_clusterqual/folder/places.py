"""Where a run may be written: a folder that is new or empty, and in no other run."""

from __future__ import annotations

import errno
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import NoReturn

from pytest_clusterqual.errors import RunFolderError

ENVIRONMENT, MEASUREMENT_LINES, RECORD_LINES = "environment.json", "measurements.jsonl", "records.jsonl"
_ELSEWHERE = "give another folder with --qual-run-dir"
_REMEDIES = {
    errno.ENOSPC: f"free some space, or {_ELSEWHERE}",
    errno.EDQUOT: f"free some of the quota, or {_ELSEWHERE}",
    errno.EROFS: f"the file system is read-only: {_ELSEWHERE}",
    errno.EACCES: f"{_ELSEWHERE} that this user may write",
    errno.EPERM: f"{_ELSEWHERE} that this user may write",
    errno.ENOENT: "the folder was removed or renamed meanwhile: put it back",
    errno.ENOTDIR: f"a part of the path is not a folder: {_ELSEWHERE}",
    errno.EEXIST: f"there is a file of that name: {_ELSEWHERE}",
}


def default_path(base: Path | str, now: datetime) -> Path:
    """A folder in `base` named by the time in UTC, with a suffix if there is one already."""
    stem = now.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    path, count = Path(base) / stem, 1
    while path.exists():
        count += 1
        path = Path(base) / f"{stem}-{count}"
    return path


def take(path: Path) -> None:
    """Make the folder of a run there, with its empty files of lines; of two runs that start at once one is refused.

    Raises:
        RunFolderError: it cannot be written, is not empty, or lies in another run.
        OSError: it cannot be made.
    """
    refuse_in_run(path)
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    _refuse_what_is_not_empty(path)
    _claim(path)


def refuse_taken(path: Path) -> None:
    """That a run may be put there.

    Raises:
        RunFolderError: it is not empty, or lies in another run.
        OSError: it is no folder.
    """
    refuse_in_run(path)
    if os.path.lexists(path):
        _refuse_what_is_not_empty(path)


def cannot_write(path: Path, error: OSError) -> NoReturn:
    """Raise why, with what to do about it."""
    remedy = _REMEDIES.get(error.errno or 0, f"check the file system, or {_ELSEWHERE}")
    raise RunFolderError(f"{path}: cannot be written: {error.strerror}; {remedy}") from error


def is_run(folder: Path) -> bool:
    """Whether a run has been begun there."""
    return all(os.path.isfile(folder / name) for name in (ENVIRONMENT, RECORD_LINES))


def refuse_in_run(path: Path, remedy: str = _ELSEWHERE) -> None:
    """That `path` lies in no run.

    Raises:
        RunFolderError: it does; `remedy` says what to do.
    """
    if inside := next((each for each in Path(os.path.realpath(path)).parents if is_run(each)), None):
        raise RunFolderError(f"{path}: lies in the run folder {inside}, which holds evidence; {remedy}")


def _refuse_what_is_not_empty(path: Path) -> None:
    names = sorted(entry.name for entry in path.iterdir())
    if any(name in names for name in (ENVIRONMENT, MEASUREMENT_LINES, RECORD_LINES)):
        raise RunFolderError(f"{path}: already holds a run; {_ELSEWHERE}, or move this one away")
    if names:
        raise RunFolderError(
            f"{path}: is not empty (it holds {names[0]!r}) and not a run folder; {_ELSEWHERE}, new or empty"
        )


def _claim(path: Path) -> None:
    """Of two runs that start at once in one folder only one gets past here."""
    for name in (RECORD_LINES, MEASUREMENT_LINES):
        try:
            os.close(os.open(path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except FileExistsError:
            raise RunFolderError(f"{path}: already holds a run; {_ELSEWHERE}, or move this one away") from None
