"""A sealed run checked: are its parts what was sealed, by whom, and do its verdicts follow from what was measured?

The file may be damaged, or made to deceive. Its parts are held against their sums before any is read, nothing is
written outside the place for it, and never more than the manifest says.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_clusterqual.errors import UNFORESEEN, ClusterQualError, LaunchError, ReadError
from pytest_clusterqual.folder.places import refuse_in_run
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.launch.process import ask
from pytest_clusterqual.model.codec import from_json
from pytest_clusterqual.model.record import SCHEMA, verdicts
from pytest_clusterqual.recorded import following
from pytest_clusterqual.recorded.following import PROJECT, Followed, Line, follow
from pytest_clusterqual.recorded.sealing import BLOCK, MANIFEST, PURPOSE, SIGNATURE, Manifest, Part, nameable
from pytest_clusterqual.report.text import visible

_CHECK_SECONDS = 30.0
_LARGEST_MANIFEST, _LARGEST_SIGNATURE = 64 << 20, 64 << 10  # bytes; that is some 400 000 parts
_UNCHECKED = "its signature could not be checked"
_ENCRYPTED = 1  # bit of a zip entry's flags
# What zipfile raises of a damaged file, by Python's release and by what is damaged.
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError, OverflowError, struct.error)
_TAKEN = (FileExistsError, NotADirectoryError, IsADirectoryError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """What a sealed file turned out to be. Its parts are what was sealed if there are no `problems`.

    `signer` says whose signature it is and whether anybody vouches for it. `followed` is what its records are worth;
    None if there are problems, or if `unread` says why they could not be read.
    """

    manifest: Manifest
    signer: str
    signed: bool
    problems: tuple[str, ...]
    followed: Followed | None = None
    unread: str = ""

    @property
    def holds(self) -> bool:
        return self.followed is not None and self.followed.holds


def verify(file: Path, *, signers: Path | None = None, extract: Path | None = None) -> Verified:
    """Check every part against its sum, the sums against the signature, and the records against the measurements.

    `signers` lists keys that are trusted, in the form of ssh's ``allowed_signers``. If all parts are what was sealed
    they are put into the new folder `extract`, which then is the run folder.

    Raises:
        ClusterQualError: the file is no sealed run, or `signers` or `extract` are not what they should be.
    """
    if signers is not None and not signers.is_file():
        raise ClusterQualError(f"{signers}: there is no such file; name one in the form of ssh's allowed_signers")
    if extract is not None and (extract.exists() or extract.is_symlink()):
        raise ClusterQualError(f"{extract}: is there already; give another folder with --extract")
    if extract is not None:
        refuse_in_run(extract, "give another folder with --extract")
    with _zip(file) as packed:
        manifest = _read_manifest(packed, file)
        signer, signed, problems = _check_signature(packed, signers)
        with _workplace(extract) as place:
            problems += _unpack(packed, manifest, place, everything=extract is not None)
            verified = Verified(manifest=manifest, signer=signer, signed=signed, problems=tuple(problems))
            if not problems:
                verified = _followed(verified, place, file)
                if extract is not None:
                    place.rename(extract)
    return verified


def _zip(file: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except OSError as error:
        raise ClusterQualError(f"{file}: cannot be read: {error.strerror or error}") from None
    except _DAMAGE as error:
        raise ClusterQualError(f"{file}: is no sealed run, or a damaged one: {error}") from None


@contextlib.contextmanager
def _workplace(extract: Path | None) -> Iterator[Path]:
    """A folder to unpack into, on the file system where the parts may stay."""
    try:
        if extract is not None:
            extract.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".clusterqual-", dir=extract.parent if extract else None) as outer:
            (place := Path(outer) / "run").mkdir()
            yield place
    except OSError as error:
        where = extract or error.filename or tempfile.gettempdir()
        remedy = "give another folder with --extract" if extract else "name a place with more room in TMPDIR"
        raise ClusterQualError(f"{where}: cannot be written: {error.strerror or error}; {remedy}") from None


# -- the parts -----------------------------------------------------------------------------------


def _blocks(packed: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    """The content of a part, piece by piece.

    Raises:
        ReadError: it is damaged, or packed as `seal` packs nothing.
    """
    try:
        info = packed.getinfo(name)
        known = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if not known or info.flag_bits & _ENCRYPTED or stat.S_ISLNK(info.external_attr >> 16):
            raise ValueError("it is packed as no seal is")
        with packed.open(info) as source:
            while block := source.read(BLOCK):
                yield block
    except _DAMAGE as error:
        raise ReadError(f"cannot be read: {error}") from None


def _content(packed: zipfile.ZipFile, name: str, most: int) -> bytes:
    content = b""
    for block in _blocks(packed, name):
        content += block
        if len(content) > most:
            raise ReadError(f"cannot be read: it has more than {most} bytes")
    return content


def _read_manifest(packed: zipfile.ZipFile, file: Path) -> Manifest:
    if MANIFEST not in packed.NameToInfo:
        raise ClusterQualError(f"{file}: is no sealed run: it has no {MANIFEST}")
    try:
        value = json.loads(_content(packed, MANIFEST, _LARGEST_MANIFEST), object_pairs_hook=_once)
        if isinstance(value, dict) and value.get("schema", SCHEMA) != SCHEMA:
            raise ReadError(f"got schema {value['schema']!r}, want {SCHEMA}; verify it with the release that sealed it")
        manifest = from_json(Manifest, value, where=MANIFEST)
        if any(part.size < 0 for part in manifest.files.values()):
            raise ReadError("a part has less than no bytes")
    except (ReadError, ValueError, RecursionError) as error:
        why = visible(str(error)).removeprefix(f"{MANIFEST}.")
        raise ClusterQualError(f"{file}: is no sealed run, or a damaged one: {MANIFEST}: {why}") from None
    return manifest


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _unpack(packed: zipfile.ZipFile, manifest: Manifest, place: Path, *, everything: bool) -> list[str]:
    """Hold every part against its sum; what differs, is missing, or was never sealed, is named.

    Those that are wanted are put into `place`: `everything`, or what verdicts follow from.

    Raises:
        OSError: they cannot be put there, which says nothing about the seal.
    """
    names, files = Counter(packed.namelist()), manifest.files
    problems = [f"{name}: is in the file twice" for name, count in names.items() if count > 1]
    problems += [
        f"{name}: was not sealed, somebody has added it"
        for name in names if name not in files and name not in (MANIFEST, SIGNATURE)
    ]  # fmt: skip
    wanted = {name for name in files if everything or _judged_by(name)}
    needed, free = sum(files[name].size for name in wanted), shutil.disk_usage(place).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"its parts have {needed} bytes, and there is room for {free}")
    for name, part in files.items():
        if name not in names:
            problems.append(f"{name}: was sealed and is missing")
        elif not nameable(name):
            problems.append(f"{name}: is no name of a run's file")
        elif wrong := _take(packed, name, part, place / name if name in wanted else None):
            problems.append(f"{name}: {wrong}")
    return problems


def _judged_by(name: str) -> bool:
    return "/" not in name and (name.endswith((".json", ".jsonl")) or name == PROJECT)


def _take(packed: zipfile.ZipFile, name: str, part: Part, target: Path | None) -> str:
    """Check one part and put it into `target`; what is wrong with it, or nothing."""
    state, left = hashlib.sha256(), part.size
    try:
        with _new(target) if target else contextlib.nullcontext() as file:
            for block in _blocks(packed, name):
                left -= len(block)
                if left < 0:
                    return f"was changed: it has more than the {part.size} bytes that were sealed"
                state.update(block)
                if file is not None:
                    file.write(block)
    except ReadError as error:
        return f"was changed: {error}"
    except _TAKEN:
        return "has the place of another part"
    same = state.hexdigest() == part.sha256
    return "" if same else f"was changed: SHA-256 {state.hexdigest()}, sealed was {part.sha256}"


def _new(target: Path) -> Any:
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.open("xb")  # file systems differ in which names are the same


# -- the signature -------------------------------------------------------------------------------


def _check_signature(packed: zipfile.ZipFile, signers: Path | None) -> tuple[str, bool, list[str]]:
    """Whose signature it is, whether it is one of this manifest, and what is wrong with it."""
    if SIGNATURE not in packed.NameToInfo:
        wanted = [f"it has no signature, and {signers} wants one"] if signers else []
        return "nobody has signed it: its sums tell of accidents, not of intent", False, wanted
    try:
        signature = _content(packed, SIGNATURE, _LARGEST_SIGNATURE)
        return _signer(_content(packed, MANIFEST, _LARGEST_MANIFEST), signature, signers)
    except (ReadError, LaunchError) as error:
        remedy = "; ssh-keygen of OpenSSH checks it" if isinstance(error, LaunchError) else ""
        return _UNCHECKED, False, [f"{SIGNATURE}: {error}{remedy}"]


def _signer(manifest: bytes, signature: bytes, signers: Path | None) -> tuple[str, bool, list[str]]:
    with tempfile.TemporaryDirectory(prefix="clusterqual-") as place:
        (kept := Path(place) / SIGNATURE).write_bytes(signature)
        text = manifest.decode(errors="replace")
        common = ["-n", PURPOSE, "-s", str(kept)]
        said = ask(["ssh-keygen", "-Y", "check-novalidate", *common], timeout=_CHECK_SECONDS, told=text)
        key = (said.out.strip().splitlines() or [""])[-1]
        if said.code != 0:
            told = f"{MANIFEST} is not what {SIGNATURE} was made of: one of them was changed"
            return "its signature is none of this record", False, [told]
        if signers is None:
            return f"{key}; nobody vouches for that key here: name trusted ones with --signers", True, []
        who = ask(["ssh-keygen", "-Y", "find-principals", "-f", str(signers), "-s", str(kept)], timeout=_CHECK_SECONDS)
        name = (who.out.strip().splitlines() or [""])[0]
        argv = ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", name, *common]
        if who.code != 0 or ask(argv, timeout=_CHECK_SECONDS, told=text).code != 0:
            return key, True, [f"it is signed with a key that {signers} does not trust"]
        return f"{key}, trusted as {name}", True, []


# -- the records ---------------------------------------------------------------------------------


def _followed(verified: Verified, place: Path, file: Path) -> Verified:
    """With what the records are worth; whatever is wrong with them takes nothing away from what is known already."""
    try:
        folder = RunFolder.open(place)
        found = follow(folder)
        told = tuple(_told_by_manifest(verified.manifest, folder))
    except ClusterQualError as error:
        return replace(verified, unread=_named(str(error), place, file))
    except (*UNFORESEEN, MemoryError) as error:
        return replace(verified, unread=f"{type(error).__name__}: {error}")
    found = replace(found, contradictions=(*told, *found.contradictions), unjudged=_named(found.unjudged, place, file))
    return replace(verified, followed=found)


def _named(text: str, place: Path, file: Path) -> str:
    """`text` with the seal's name for the place where it is unpacked."""
    return text.replace(str(place), file.name)


def _told_by_manifest(manifest: Manifest, folder: RunFolder) -> Iterator[str]:
    """The manifest says of the run what the run says."""
    for key in ("run", "simulated"):
        if (told := getattr(manifest, key)) != (is_ := getattr(folder, key)):
            yield f"{MANIFEST}: {key}: got {told!r}, the run says {is_!r}"
    recorded = {test: str(told) for test, told in verdicts(folder.records()).items()}
    for test in dict.fromkeys((*manifest.verdicts, *recorded)):
        one, other = manifest.verdicts.get(test, "nothing"), recorded.get(test, "nothing")
        if one != other:
            yield f"{MANIFEST}: says {one} of {test}, its records say {other}"


# -- what is told --------------------------------------------------------------------------------


def as_lines(found: Verified, *, extracted: Path | None = None) -> list[Line]:
    """First the parts and the signature, then what the records are worth."""
    told, files = found.manifest, len(found.manifest.files)
    unsigned = "" if found.signed or found.signer == _UNCHECKED else "; nobody has signed that"
    made = f"run {told.run}, {told.sealed}, by pytest-clusterqual {told.package}{unsigned}"
    lines = [("sealed", made), ("signature", found.signer)]
    lines += [("REFUSED", problem) for problem in found.problems]
    if found.problems:
        return [*lines, ("NOT JUDGED", "of a refused seal nothing is read")]
    lines.append(("parts", f"all {files} are what was sealed"))
    if extracted is not None:
        lines.append(("extracted", f"{extracted}: the run folder"))
    if found.followed is None:
        return [*lines, ("NOT JUDGED", f"the records cannot be read: {found.unread}")]
    return [*lines, *following.as_lines(found.followed)]
