"""A file that is damaged, or made to deceive: whatever is wrong with it is named, and nothing of it gets out."""

from __future__ import annotations

import hashlib
import random
import re
import stat
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from seal_made import keys, manifest_of, needs_ssh, rewritten, sealed, told_otherwise, with_part

from pytest_clusterqual.cli import main
from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.recorded import verifying
from pytest_clusterqual.recorded.sealing import MANIFEST, SIGNATURE
from pytest_clusterqual.recorded.verifying import verify

FLAGS, METHOD, NAME = 8, 10, 46  # places in an entry of a zip's directory


def patched(file: Path, name: str, place: int, value: bytes) -> Path:
    """The same file with other bytes in the directory's entry of a part."""
    content = bytearray(file.read_bytes())
    entry = content.rindex(name.encode()) - NAME
    assert content[entry : entry + 4] == b"PK\x01\x02"
    content[entry + place : entry + place + len(value)] = value
    file.write_bytes(content)
    return file


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"records.jsonl": b"{}\n"}, r"records.jsonl: was changed: SHA-256 .*, sealed was "),
        ({"ranks/node0.log": b"a rank's wordz\n"}, r"ranks/node0.log: was changed"),
        ({"ranks/node0.log": b"x" * (8 << 20)}, r"ranks/node0.log: was changed: it has more than the 15 bytes that"),
        ({"measurements.jsonl": None}, r"measurements.jsonl: was sealed and is missing"),
        ({"extra.txt": b"more"}, r"extra.txt: was not sealed, somebody has added it"),
    ],
)
def test_what_was_changed_is_named(tmp_path: Path, change: dict[str, bytes | None], problem: str) -> None:
    found = verify(rewritten(sealed(tmp_path), change))
    assert re.match(problem, found.problems[0]) and len(found.problems) == 1
    assert found.followed is None and not found.holds


def test_no_flipped_byte_of_any_part_passes(tmp_path: Path) -> None:
    file = sealed(tmp_path)
    content, drawn = bytearray(file.read_bytes()), random.Random(7)
    with zipfile.ZipFile(file) as packed:
        before = {name: packed.read(name) for name in packed.namelist()}
    for _ in range(120):
        at = drawn.randrange(len(content))
        flipped = bytes(content[:at]) + bytes([content[at] ^ (1 << drawn.randrange(8))]) + bytes(content[at + 1 :])
        other = tmp_path / "flipped.zip"
        other.write_bytes(flipped)
        try:
            found = verify(other)
        except ClusterQualError:
            continue
        if not found.problems:  # nothing but the zip's own notes of dates and the like may have changed
            with zipfile.ZipFile(other) as packed:
                assert {name: packed.read(name) for name in packed.namelist()} == before


# -- the zip -------------------------------------------------------------------------------------

PACKED_OTHERWISE = [
    (FLAGS, b"\x01\x00"), (METHOD, struct.pack("<H", 12)), (METHOD, struct.pack("<H", 14)),
    (METHOD, struct.pack("<H", 99)),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value"), PACKED_OTHERWISE)
def test_a_part_that_is_packed_otherwise_is_named(tmp_path: Path, place: int, value: bytes) -> None:
    (problem,) = verify(patched(sealed(tmp_path), "records.jsonl", place, value)).problems
    assert problem == "records.jsonl: was changed: cannot be read: it is packed as no seal is"


@pytest.mark.parametrize(("place", "value"), PACKED_OTHERWISE)
def test_a_manifest_that_is_packed_otherwise_is_none(tmp_path: Path, place: int, value: bytes) -> None:
    with pytest.raises(ClusterQualError, match=r"MANIFEST\.json: cannot be read: it is packed as no seal is"):
        verify(patched(sealed(tmp_path), MANIFEST, place, value))


@needs_ssh
def test_a_signature_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    found = verify(patched(sealed(tmp_path, key=keys(tmp_path)), SIGNATURE, METHOD, b"\x63\x00"))
    assert found.problems == (f"{SIGNATURE}: cannot be read: it is packed as no seal is",)
    assert not found.signed


def test_a_name_in_no_known_writing_is_told(tmp_path: Path) -> None:
    file = patched(sealed(tmp_path), "records.jsonl", FLAGS, b"\x00\x08")
    with pytest.raises(ClusterQualError, match=r"run\.clusterqual\.zip: is no sealed run, or a damaged one"):
        verify(patched(file, "records.jsonl", NAME, b"\xff"))


def test_a_part_that_is_there_twice_is_named(tmp_path: Path) -> None:
    file = sealed(tmp_path)
    with zipfile.ZipFile(file, "a") as packed, pytest.warns(UserWarning, match="Duplicate name"):
        packed.writestr("ranks/node0.log", "a rank's words\n")
    assert verify(file).problems == ("ranks/node0.log: is in the file twice",)


def test_a_part_that_is_a_link_is_named(tmp_path: Path) -> None:
    file = with_part(sealed(tmp_path), "latest", b"/etc/passwd")
    mode = struct.pack("<I", (stat.S_IFLNK | 0o777) << 16)
    (problem,) = verify(patched(file, "latest", 38, mode)).problems
    assert problem == "latest: was changed: cannot be read: it is packed as no seal is"


@pytest.mark.parametrize("content", [b"", b"PK", b"a text\n"])
def test_what_is_no_sealed_run_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "none.zip"
    file.write_bytes(content)
    with pytest.raises(ClusterQualError, match=r"none\.zip: is no sealed run"):
        verify(file)


@pytest.mark.parametrize(("name", "why"), [("", "Is a directory"), ("nowhere.zip", "No such file or directory")])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ClusterQualError, match=f"cannot be read: {why}"):
        verify(tmp_path / name)


# -- the manifest --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "it has no MANIFEST.json"),
        (b"[]", "got [], want Manifest"),
        (b"{}", "the field 'schema' is missing"),
        (b"[" * 100_000, "maximum recursion depth exceeded"),
        (b'{"run": "a", "run": "b"}', "a name is there twice"),
        (b"\xff", "codec can't decode"),
        (b'{"schema": 2}', "got schema 2, want 1; verify it with the release that sealed it"),
    ],
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, content: bytes | None, why: str) -> None:
    with pytest.raises(ClusterQualError, match=re.escape(why)):
        verify(rewritten(sealed(tmp_path), {MANIFEST: content}))


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("size", None, "files.records.jsonl.size: got None, want int"),
        ("size", -1, "a part has less than no bytes"),
        ("size", 1.5, "files.records.jsonl.size: got 1.5, want int"),
        ("sha256", 7, "files.records.jsonl.sha256: got 7, want str"),
        ("mode", 7, "got unknown field 'mode'"),
    ],
)
def test_a_sum_that_is_none_is_refused(tmp_path: Path, key: str, value: Any, why: str) -> None:
    with pytest.raises(ClusterQualError, match=re.escape(why)):
        verify(told_otherwise(sealed(tmp_path), lambda m: m["files"]["records.jsonl"].update({key: value})))


def test_a_manifest_without_end_is_not_read_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "_LARGEST_MANIFEST", 1 << 20)
    with pytest.raises(ClusterQualError, match="it has more than 1048576 bytes"):
        verify(rewritten(sealed(tmp_path), {MANIFEST: b" " * (64 << 20)}))


def test_what_no_disk_holds_is_not_unpacked(tmp_path: Path) -> None:
    file = told_otherwise(sealed(tmp_path), lambda m: m["files"]["records.jsonl"].update(size=10**18))
    with pytest.raises(ClusterQualError, match=r"its parts have 1000000000\d+ bytes, and there is room for \d+; "):
        verify(file)


# -- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../outside", "/etc/outside", "a\\..\\outside", "a/../../outside", "a//b", "./a", ".git/config", "a\nb"]
)
def test_a_part_cannot_be_written_outside(tmp_path: Path, name: str) -> None:
    found = verify(with_part(sealed(tmp_path), name, b"evil"), extract=tmp_path / "taken" / "run")
    assert f"{name}: is no name of a run's file" in found.problems
    assert not list(tmp_path.rglob("outside")) and not (tmp_path / "taken" / "run").exists()


def test_the_manifest_is_no_part_of_itself(tmp_path: Path) -> None:
    file = sealed(tmp_path)
    entry = {"sha256": hashlib.sha256(b"").hexdigest(), "size": 0}
    assert (
        f"{MANIFEST}: is no name of a run's file"
        in verify(told_otherwise(file, lambda m: m["files"].update({MANIFEST: entry}))).problems
    )


def test_two_parts_do_not_have_the_same_place(tmp_path: Path) -> None:
    file = with_part(with_part(sealed(tmp_path), "ranks", b"no folder"), "later", b"")
    assert manifest_of(file)["files"].keys() >= {"ranks", "ranks/node0.log"}
    (problem,) = verify(file, extract=tmp_path / "taken").problems
    assert problem == "ranks: has the place of another part"


def test_where_two_names_are_one_neither_hides_the_other(tmp_path: Path) -> None:
    """As on a file system that takes capital letters for small ones."""
    file, taken = sealed(tmp_path), tmp_path / "taken"
    taken.write_text("another part")
    part = verifying.Part(**manifest_of(file)["files"]["ranks/node0.log"])
    with zipfile.ZipFile(file) as packed:
        assert verifying._take(packed, "ranks/node0.log", part, taken) == "has the place of another part"
    assert taken.read_text() == "another part"


def test_what_a_file_tells_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = rewritten(sealed(tmp_path), {"\x1b[2J.txt": b""})
    assert main(["verify", str(file)]) == 1
    out = capsys.readouterr().out
    assert r"REFUSED    \x1b[2J.txt: was not sealed, somebody has added it" in out and "\x1b" not in out
