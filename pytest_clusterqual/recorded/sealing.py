"""The acceptance record: a run folder in one file with the sums of its parts, signed with the user's ssh key.

The file is a zip. `MANIFEST.json` names every other part with its SHA-256 sum, `MANIFEST.json.sig` is what
``ssh-keygen -Y sign`` makes of it. Whoever has the file can check it anywhere, and judge the raw measurements again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NoReturn

from pytest_clusterqual import __version__
from pytest_clusterqual.errors import ClusterQualError, RunFolderError
from pytest_clusterqual.folder.leases import refuse_unended
from pytest_clusterqual.folder.places import RECORD_LINES, refuse_in_run
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.launch.process import ask
from pytest_clusterqual.model.codec import to_json
from pytest_clusterqual.model.record import SCHEMA, verdicts
from pytest_clusterqual.recorded.deciding import decision_of, pages, plan_of
from pytest_clusterqual.recorded.following import PROJECT
from pytest_clusterqual.recorded.reporting import PAGE, write_page
from pytest_clusterqual.report import plots

MANIFEST, SIGNATURE = "MANIFEST.json", "MANIFEST.json.sig"
PURPOSE = "clusterqual"  # ssh's namespace: a signature for anything else is none of a run
SUFFIX = ".clusterqual.zip"
BLOCK = 1 << 20
_PASSPHRASE_SECONDS = 300.0
_LEFT_OUT = ("leases",)  # who had which nodes meanwhile


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """SHA-256 sum of a part, in hexadecimal digits, and its size in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What was sealed, when, by which release; `verdicts` are those of the tests, `files` the parts by their names."""

    schema: int
    run: str
    simulated: bool
    sealed: str
    package: str
    verdicts: dict[str, str]
    files: dict[str, Part]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sealed:
    """A seal that was made: `made` are reports that the run folder lacked, `left_out` the links that it holds."""

    file: Path
    made: tuple[str, ...]
    left_out: tuple[str, ...]


def seal(folder: RunFolder, *, key: Path | None, out: Path) -> Sealed:
    """Pack and sign; without a `key` the sums are there and nobody's signature. The run folder is only read.

    Raises:
        ClusterQualError: the file exists or cannot be written, the page cannot be made, or ssh-keygen does not sign.
    """
    if out.exists():
        _refuse_written(out)
    refuse_in_run(out, "give another place with --out")
    refuse_unended(folder.path)
    unfinished = out.with_name(f".{out.name}.{secrets.token_hex(4)}")  # two may seal at once
    parts, left_out = _parts(folder.path)
    try:
        with tempfile.TemporaryDirectory(prefix="clusterqual-") as place:
            (more := Path(place) / "more").mkdir()
            made = _reports(folder, more) if _lacks_page(parts) else ()
            if isinstance(text := folder.environment.get("project_file"), str):
                (more / PROJECT).write_bytes(text.encode(errors="replace"))
            parts |= {path.relative_to(more).as_posix(): path for path in more.rglob("*") if path.is_file()}
            _write(unfinished, folder, parts, key, Path(place))
        _name(unfinished, out)
    except OSError as error:
        raise ClusterQualError(f"{out}: cannot be written: {error.strerror}; give another place with --out") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return Sealed(file=out, made=made, left_out=left_out)


def _refuse_written(out: Path) -> NoReturn:
    raise ClusterQualError(f"{out}: is there already; give another name with --out, or move it away")


def _name(unfinished: Path, out: Path) -> None:
    """Give the finished seal its name, unless another one has it by now."""
    try:
        os.link(unfinished, out)
    except FileExistsError:
        _refuse_written(out)
    except OSError:  # a file system without links
        unfinished.rename(out)


def default_name(folder: Path) -> Path:
    """Where the seal of a run goes if nobody says: beside where one is, under the run's name."""
    return Path(folder.resolve().name + SUFFIX)


def nameable(name: str) -> bool:
    """True of what a part may be called: a plain path inside the run folder that is the same one everywhere."""
    path = PurePosixPath(name)
    return (
        name.isprintable()
        and path.as_posix() == name
        and not path.is_absolute()
        and "\\" not in name
        and not any(part.startswith(".") for part in path.parts)
        and name not in (MANIFEST, SIGNATURE)
    )


def _parts(folder: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """The files of a run by their names in the seal, and the links, which are no part of it; nor is what is hidden."""
    parts, links = {}, []
    for path in sorted(_below(folder)):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or name.parts[0] in _LEFT_OUT:
            continue
        if path.is_symlink():
            links.append(name.as_posix())
        elif path.is_file():
            if name.as_posix() in (MANIFEST, SIGNATURE):
                raise RunFolderError(f"{path}: a run folder holds no such file; is this an unpacked seal?")
            if not nameable(name.as_posix()):
                raise RunFolderError(f"{str(path)!r}: a seal holds no such name; rename it, or move it away")
            parts[name.as_posix()] = path
    return parts, tuple(links)


def _below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> NoReturn:
        _refuse_unreadable(error.filename, error)

    for place, folders, files in os.walk(folder, onerror=refuse):
        yield from (Path(place, name) for name in (*folders, *files))


def _lacks_page(parts: Mapping[str, Path]) -> bool:
    """True if the page is elsewhere, or of before the last record, as after Ctrl-C."""
    page, records = parts.get(PAGE), parts.get(RECORD_LINES)
    return page is None or (records is not None and page.stat().st_mtime < records.stat().st_mtime)


def _reports(folder: RunFolder, place: Path) -> tuple[str, ...]:
    """What a run ends with for people, made in `place`."""
    decision = decision_of(folder, plan_of(folder))
    drawn, note = plots.write_plots(
        folder.records(), folder.measurements(quick=True), place / "plots", budget=plots.BUDGET
    )
    write_page(folder, place / PAGE, plots=drawn, note=note, decision=decision)
    told = pages(decision, run=folder.run)
    for name, text in told.items():
        (place / name).write_text(text, encoding="utf-8")
    return (PAGE, *told, *(f"plots/{plot.name}.svg" for plot in drawn))


def _write(file: Path, folder: RunFolder, parts: Mapping[str, Path], key: Path | None, place: Path) -> None:
    manifest = place / MANIFEST
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        sums = {name: _pack(packed, name, path) for name, path in sorted(parts.items())}
        manifest.write_text(json.dumps(to_json(_manifest(folder, sums)), indent=1) + "\n", encoding="utf-8")
        packed.write(manifest, MANIFEST)
        if key is not None:
            packed.write(_signed(manifest, key), SIGNATURE)


def _pack(packed: zipfile.ZipFile, name: str, path: Path) -> Part:
    state, size = hashlib.sha256(), 0
    with _opened(path) as source, packed.open(name, "w", force_zip64=True) as target:
        while block := source.read(BLOCK):
            state.update(block)
            size += len(block)
            target.write(block)
    return Part(sha256=state.hexdigest(), size=size)


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        _refuse_unreadable(path, error)


def _refuse_unreadable(path: Path | str, error: OSError) -> NoReturn:
    raise RunFolderError(
        f"{path}: cannot be read: {error.strerror}; a seal holds every file of a run: make it readable"
    ) from error


def _manifest(folder: RunFolder, files: dict[str, Part]) -> Manifest:
    return Manifest(
        schema=SCHEMA, run=folder.run, simulated=folder.simulated,
        sealed=datetime.now(timezone.utc).isoformat(timespec="seconds"), package=__version__,
        verdicts={test: str(told) for test, told in verdicts(folder.records()).items()}, files=files,
    )  # fmt: skip


def _signed(manifest: Path, key: Path) -> Path:
    argv = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", PURPOSE, str(manifest)]
    said = ask(argv, timeout=_PASSPHRASE_SECONDS)
    signature = manifest.with_name(SIGNATURE)
    if said.code != 0 or not signature.is_file():
        why = (said.err.strip().splitlines() or ["no reason given"])[-1]
        remedy = "give another private key with --key"
        if "passphrase" in why:
            remedy = "seal in a terminal, where it asks for the passphrase, or put the key into ssh-agent"
        raise ClusterQualError(f"{key}: ssh-keygen does not sign with it: {why}; {remedy}")
    return signature
