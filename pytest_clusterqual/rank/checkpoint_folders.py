"""Folders of checkpoints: one a step, complete or not used at all.

A step's folder counts as complete when torch's own metadata and one marker of every rank are in
it. Whatever a killed run left half done is therefore never loaded; nor is what has lost bytes since,
for each marker tells how many there were.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path

KEEP = 2
METADATA = ".metadata"
_STEP_FOLDER = re.compile(r"step-(\d{8,})")


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint of `step` lies."""
    return folder / f"step-{step:08d}"


def write_marker(place: Path, rank: int, world_size: int) -> None:
    """Say durably that this rank's part of the checkpoint in `place` is written, and how much that is."""
    path = place / f"rank-{rank:05d}.done"
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w") as file:
        json.dump({"world_size": world_size, "bytes": part_size(place, rank) + _metadata_size(place, rank)}, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    directory = os.open(place, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def part_size(place: Path, rank: int) -> int:
    """Bytes that this rank has written of the checkpoint in `place`, metadata aside."""
    return sum(path.stat().st_size for path in place.glob(f"__{rank}_*.distcp"))


def _metadata_size(place: Path, rank: int) -> int:
    """Rank 0 writes the metadata, before any rank's part counts as saved."""
    return _size(place / METADATA) if rank == 0 and (place / METADATA).exists() else 0


def latest_complete(folder: Path) -> tuple[Path, int] | None:
    """The newest complete checkpoint and its step, of however many ranks."""
    steps = complete_steps(folder)
    return (step_folder(folder, steps[-1]), steps[-1]) if steps else None


def complete_steps(folder: Path) -> list[int]:
    """Steps of all complete checkpoints, in order."""
    return [step for step, place in _step_folders(folder) if _is_complete(place)]


def remove_torn(folder: Path) -> list[int]:
    """Delete checkpoints that a killed run left half done, so that no old part mixes with a new one, and damaged ones.

    Returns:
        The steps of the damaged: they were complete, and have lost data since.
    """
    damaged = []
    for step, place in _step_folders(folder):
        complete = _is_complete(place)
        if complete and _is_whole(place):
            continue
        damaged += [step] * complete
        shutil.rmtree(place, ignore_errors=True)
    return damaged


def prune(folder: Path) -> None:
    """Delete all complete checkpoints but the last `KEEP`."""
    for step in complete_steps(folder)[:-KEEP]:
        shutil.rmtree(step_folder(folder, step), ignore_errors=True)


def _step_folders(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    found = [(match, place) for place in folder.iterdir() if (match := _STEP_FOLDER.fullmatch(place.name))]
    return sorted((int(match[1]), place) for match, place in found)


def _is_complete(place: Path) -> bool:
    """Each marker tells of how many ranks the checkpoint is: as many must be there."""
    try:
        sizes = [marker["world_size"] for marker in _markers(place).values()]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(sizes) and sizes == [len(sizes)] * len(sizes) and (place / METADATA).is_file()


def _is_whole(place: Path) -> bool:
    """There still is as much of each rank of a complete checkpoint as its marker tells."""
    try:
        found: Counter[int] = Counter({0: _size(place / METADATA)})
        for path in place.glob("__*.distcp"):
            found[int(path.name.split("_")[2])] += _size(path)
        return all(found[rank] == marker.get("bytes", found[rank]) for rank, marker in _markers(place).items())
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return False
    except OSError:
        return True  # nothing is deleted for a storage that answers badly: who loads it tells


def _markers(place: Path) -> dict[int, dict[str, int]]:
    """What the marker of each rank tells."""
    return {int(path.stem.removeprefix("rank-")): json.loads(path.read_text()) for path in place.glob("rank-*.done")}


def _size(path: Path) -> int:
    """Bytes of a file; storage that many hosts see may tell an old size until it is opened."""
    with path.open("rb") as file:
        return file.seek(0, os.SEEK_END)
