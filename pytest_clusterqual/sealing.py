"""The acceptance record: a run folder in one file with the sums of its parts, signed with the user's ssh key.

The file is a zip. `MANIFEST.json` names every other part with its SHA-256 sum, `MANIFEST.json.sig` is what
``ssh-keygen -Y sign`` makes of it. Whoever has the file can check it anywhere, and judge the raw measurements again.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any

from pytest_clusterqual import __version__
from pytest_clusterqual.errors import ClusterQualError, RunFolderError
from pytest_clusterqual.judging import Change, changes, judge_again, own_project
from pytest_clusterqual.launch.process import ask
from pytest_clusterqual.model.record import SCHEMA, worst
from pytest_clusterqual.runs import RunFolder

MANIFEST, SIGNATURE, PROJECT = "MANIFEST.json", "MANIFEST.json.sig", "clusterqual.yaml"
SUFFIX = ".clusterqual.zip"
_PURPOSE = "clusterqual"  # ssh's namespace: a signature for anything else is none of a run
_PASSPHRASE_SECONDS, _CHECK_SECONDS = 300.0, 30.0
_LEFT_OUT = ("leases",)  # who had which nodes meanwhile
_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """What a sealed file turned out to be. It is what was sealed if there are no `problems`.

    `signer` says whose signature it is and whether anybody vouches for it; `verdicts` are those of the tests.
    `different` are figures that this release judges otherwise than the record has them.
    """

    run: str
    sealed: str
    package: str
    signer: str
    verdicts: dict[str, str]
    files: int
    problems: tuple[str, ...]
    different: tuple[Change, ...] = ()


def seal(folder: RunFolder, *, key: Path | None, out: Path) -> Path:
    """Pack and sign; without a `key` the sums are there and nobody's signature.

    Raises:
        ClusterQualError: the file exists or cannot be written, or ssh-keygen does not sign.
    """
    if out.exists():
        raise ClusterQualError(f"{out}: is there already; give another name with --out, or move it away")
    unfinished = out.with_name(f".{out.name}.unfinished")
    try:
        with tempfile.TemporaryDirectory(prefix="clusterqual-") as place:
            manifest = Path(place) / MANIFEST
            with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as packed:
                parts = {name: _pack(packed, name, path) for name, path in _parts(folder.path)}
                if isinstance(text := folder.environment.get("project_file"), str) and PROJECT not in parts:
                    (Path(place) / PROJECT).write_text(text, encoding="utf-8")
                    parts[PROJECT] = _pack(packed, PROJECT, Path(place) / PROJECT)
                manifest.write_text(json.dumps(_manifest(folder, parts), indent=1) + "\n", encoding="utf-8")
                packed.write(manifest, MANIFEST)
                if key is not None:
                    packed.write(_signed(manifest, key), SIGNATURE)
        unfinished.rename(out)
    except OSError as error:
        raise ClusterQualError(f"{out}: cannot be written: {error.strerror}; give another place with --out") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return out


def verify(file: Path, *, signers: Path | None = None) -> Verified:
    """Check every part against its sum, the sums against the signature, and the verdicts against the measurements.

    `signers` lists keys that are trusted, in the form of ssh's ``allowed_signers``.

    Raises:
        ClusterQualError: it is no sealed run, or what it holds cannot be read as a run any more.
    """
    try:
        with zipfile.ZipFile(file) as packed, tempfile.TemporaryDirectory(prefix="clusterqual-") as place:
            manifest = _read_manifest(packed, file)
            signer, problems = _check_signature(packed, signers)
            problems += _unpacked(packed, manifest["files"], Path(place))
            different: tuple[Change, ...] = ()
            if not problems:
                folder = RunFolder.open(place)
                different = tuple(changes(folder.records(), judge_again(folder, own_project(folder))))
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ClusterQualError(f"{file}: is no sealed run, or a damaged one: {error}") from None
    except OSError as error:
        raise ClusterQualError(f"{file}: cannot be read: {error.strerror}") from None
    return Verified(
        run=manifest["run"], sealed=manifest["sealed"], package=manifest["package"], signer=signer,
        verdicts=manifest["verdicts"], files=len(manifest["files"]), problems=tuple(problems), different=different,
    )  # fmt: skip


def _parts(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of a run by their names in the seal; links and what is hidden are no part of it."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not path.is_symlink() and not hidden and name.parts[0] not in _LEFT_OUT:
            if name.as_posix() in (MANIFEST, SIGNATURE):
                raise RunFolderError(f"{path}: a run folder holds no such file; is this an unpacked seal?")
            yield name.as_posix(), path


def _pack(packed: zipfile.ZipFile, name: str, path: Path) -> dict[str, Any]:
    state, size = hashlib.sha256(), 0
    with path.open("rb") as source, packed.open(name, "w", force_zip64=True) as target:
        while block := source.read(_BLOCK):
            state.update(block)
            size += len(block)
            target.write(block)
    return {"sha256": state.hexdigest(), "size": size}


def _manifest(folder: RunFolder, parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    by_test: dict[str, list[Any]] = {}
    for record in folder.records():
        by_test.setdefault(record.test, []).append(record.judgement.verdict)
    return {
        "schema": SCHEMA, "run": folder.run, "simulated": folder.simulated,
        "sealed": datetime.now(timezone.utc).isoformat(timespec="seconds"), "package": __version__,
        "verdicts": {test: str(worst(verdicts)) for test, verdicts in by_test.items()}, "files": parts,
    }  # fmt: skip


def _signed(manifest: Path, key: Path) -> Path:
    argv = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", _PURPOSE, str(manifest)]
    said = ask(argv, timeout=_PASSPHRASE_SECONDS)
    signature = manifest.with_name(SIGNATURE)
    if said.code != 0 or not signature.is_file():
        why = (said.err.strip().splitlines() or ["no reason given"])[-1]
        raise ClusterQualError(f"{key}: ssh-keygen does not sign with it: {why}; give another private key with --key")
    return signature


def _read_manifest(packed: zipfile.ZipFile, file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(packed.read(MANIFEST))
        files = manifest["files"]
        told = all(isinstance(manifest[key], str) for key in ("run", "sealed", "package"))
        if (
            told
            and isinstance(manifest["verdicts"], dict)
            and all({"sha256", "size"} <= set(f) for f in files.values())
        ):
            return dict(manifest)
    except (KeyError, ValueError, AttributeError, TypeError):
        pass
    raise ClusterQualError(f"{file}: is no sealed run: it has no {MANIFEST}, or another one")


def _check_signature(packed: zipfile.ZipFile, signers: Path | None) -> tuple[str, list[str]]:
    """Whose signature it is, and what is wrong with it."""
    if SIGNATURE not in packed.namelist():
        wanted = [f"it has no signature, and {signers} wants one"] if signers else []
        return "nobody has signed it: its sums tell of accidents, not of intent", wanted
    with tempfile.TemporaryDirectory(prefix="clusterqual-") as place:
        signature = Path(place) / SIGNATURE
        signature.write_bytes(packed.read(SIGNATURE))
        text = packed.read(MANIFEST).decode(errors="replace")
        common = ["-n", _PURPOSE, "-s", str(signature)]
        said = ask(["ssh-keygen", "-Y", "check-novalidate", *common], timeout=_CHECK_SECONDS, told=text)
        key = (said.out.strip().splitlines() or [""])[-1]
        if said.code != 0:
            return "its signature is none of this record", [f"{MANIFEST}: was changed after it was signed"]
        if signers is None:
            return f"{key}; nobody vouches for that key here: name trusted ones with --signers", []
        who = ask(
            ["ssh-keygen", "-Y", "find-principals", "-f", str(signers), "-s", str(signature)], timeout=_CHECK_SECONDS
        )
        name = (who.out.strip().splitlines() or [""])[0]
        argv = ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", name, *common]
        if who.code != 0 or ask(argv, timeout=_CHECK_SECONDS, told=text).code != 0:
            return key, [f"it is signed with a key that {signers} does not trust"]
        return f"{key}, trusted as {name}", []


def _unpacked(packed: zipfile.ZipFile, files: dict[str, dict[str, Any]], place: Path) -> list[str]:
    """Put every part into `place`; what differs from its sum, is missing, or was never sealed, is named."""
    names = packed.namelist()
    problems = [f"{name}: is in the file twice" for name in sorted({n for n in names if names.count(n) > 1})]
    problems += [f"{name}: was not sealed, somebody has added it" for name in names if not _known(name, files)]
    for name, sealed in files.items():
        if name not in names:
            problems.append(f"{name}: was sealed and is missing")
        elif not _inside(name):
            problems.append(f"{name}: is no name of a run's file")
        elif (found := _unpack(packed, name, place / name, int(sealed["size"]))) != sealed["sha256"]:
            problems.append(f"{name}: was changed: SHA-256 {found or 'cannot be read'}, sealed was {sealed['sha256']}")
    return problems


def _known(name: str, files: dict[str, dict[str, Any]]) -> bool:
    return name in files or name in (MANIFEST, SIGNATURE)


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _unpack(packed: zipfile.ZipFile, name: str, target: Path, size: int) -> str:
    """The sum of a part, empty if it cannot be read; no more than its sealed size is ever written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    state = hashlib.sha256()
    try:
        with packed.open(name) as source, target.open("wb") as file:
            while block := source.read(_BLOCK):
                state.update(block)
                size -= len(block)
                if size < 0:
                    return "of more than was sealed"
                file.write(block)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError):
        return ""
    return state.hexdigest()


def default_name(folder: Path) -> Path:
    """Where the seal of a run goes if nobody says: beside where one is, under the run's name."""
    return Path(folder.resolve().name + SUFFIX)
