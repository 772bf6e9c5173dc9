"""Sealed runs for tests, and what somebody else could make of them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorded_made import PROJECT, recorded

from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.recorded.sealing import MANIFEST, seal

Change = Callable[[dict[str, Any]], None]
needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen here")


def keys(place: Path, name: str = "key") -> Path:
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{name}@lab", "-f", str(place / name)]
    subprocess.run(made, check=True, stdin=subprocess.DEVNULL)
    return place / name


def run_folder(path: Path, *, project: str = PROJECT) -> Path:
    """A run with a page, so that sealing it draws nothing."""
    folder = recorded(path, project=project)
    (folder.path / "ranks").mkdir()
    (folder.path / "ranks" / "node0.log").write_text("a rank's words\n")
    (folder.path / "report.html").write_text("<title>the page</title>\n")
    return folder.path


def sealed(tmp_path: Path, *, key: Path | None = None) -> Path:
    return resealed(run_folder(tmp_path / "run"), key=key)


def resealed(run: Path, *, key: Path | None = None) -> Path:
    """The seal of a run folder as it is now; its page counts as made of it."""
    os.utime(run / "report.html")
    (out := run.with_name("run.clusterqual.zip")).unlink(missing_ok=True)
    return seal(RunFolder.open(run), key=key, out=out).file


def edited(run: Path, name: str, change: Change) -> Path:
    """The run folder with every line of a file changed."""
    lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
    for line in lines:
        line.pop("size", None)  # of a measurement that is not the one that was written
        change(line)
    (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def added(run: Path, change: Change) -> Path:
    """The run folder with a copy of its first record, changed."""
    lines = (run / "records.jsonl").read_text().splitlines()
    more = json.loads(lines[0])
    change(more)
    (run / "records.jsonl").write_text("".join(f"{line}\n" for line in (*lines, json.dumps(more))))
    return run


def rewritten(file: Path, change: dict[str, bytes | None]) -> Path:
    """The file with other bytes under some names; None takes the name away."""
    with zipfile.ZipFile(file) as packed:
        parts: dict[str, bytes | None] = {name: packed.read(name) for name in packed.namelist()}
    with zipfile.ZipFile(file, "w") as packed:
        for name, content in {**parts, **change}.items():
            if content is not None:
                packed.writestr(name, content)
    return file


def manifest_of(file: Path) -> dict[str, Any]:
    with zipfile.ZipFile(file) as packed:
        return dict(json.loads(packed.read(MANIFEST)))


def told_otherwise(file: Path, change: Change) -> Path:
    """The file with another manifest."""
    manifest = manifest_of(file)
    change(manifest)
    return rewritten(file, {MANIFEST: json.dumps(manifest).encode()})


def with_part(file: Path, name: str, content: bytes) -> Path:
    """The file with one part more or changed, and the sum that is right for it."""
    manifest = manifest_of(file)
    manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    return rewritten(file, {MANIFEST: json.dumps(manifest).encode(), name: content})
