"""A sealed run can be checked anywhere, and whatever was changed in it is named."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from recorded_made import PROJECT, TEST, recorded

from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.runs import RunFolder
from pytest_clusterqual.sealing import MANIFEST, SIGNATURE, default_name, seal, verify

needs_ssh = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen here")


def keys(place: Path, name: str = "key") -> Path:
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{name}@lab", "-f", str(place / name)]
    subprocess.run(made, check=True, stdin=subprocess.DEVNULL)
    return place / name


def sealed(tmp_path: Path, *, key: Path | None = None) -> Path:
    folder = recorded(tmp_path / "run")
    (folder.path / "ranks").mkdir()
    (folder.path / "ranks" / "node0.log").write_text("a rank's words\n")
    return seal(folder, key=key, out=tmp_path / "run.clusterqual.zip")


def rewritten(file: Path, change: dict[str, bytes | None]) -> Path:
    """The same file with other bytes under some names; None takes the name away."""
    other = file.with_name("other.zip")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(other, "w") as new:
        for name in dict.fromkeys([*old.namelist(), *change]):
            content = change[name] if name in change else old.read(name)
            if content is not None:
                new.writestr(name, content)
    return other


def test_a_sealed_run_holds_everything_and_its_verdicts_come_out_again(tmp_path: Path) -> None:
    file = sealed(tmp_path)
    with zipfile.ZipFile(file) as packed:
        assert set(packed.namelist()) == {
            "environment.json", "measurements.jsonl", "records.jsonl", "ranks/node0.log", "clusterqual.yaml", MANIFEST,
        }  # fmt: skip
        assert packed.read("clusterqual.yaml").decode() == PROJECT
    shutil.rmtree(tmp_path / "run")
    found = verify(file)
    assert found.problems == () and found.different == ()
    assert (found.run, found.verdicts, found.files) == ("20261130T014824Z", {TEST: "PASS"}, 5)
    assert "nobody has signed it" in found.signer


@needs_ssh
def test_a_signature_is_of_its_key_and_only_a_trusted_key_is_trusted(tmp_path: Path) -> None:
    key = keys(tmp_path)
    file = sealed(tmp_path, key=key)
    alone = verify(file)
    assert alone.problems == () and "ED25519" in alone.signer and "nobody vouches" in alone.signer
    signers = tmp_path / "allowed_signers"
    signers.write_text(f"acceptance@lab {key.with_suffix('.pub').read_text()}")
    trusted = verify(file, signers=signers)
    assert trusted.problems == () and trusted.signer.endswith("trusted as acceptance@lab")
    signers.write_text(f"acceptance@lab {keys(tmp_path, 'another').with_suffix('.pub').read_text()}")
    (problem,) = verify(file, signers=signers).problems
    assert problem == f"it is signed with a key that {signers} does not trust"


@needs_ssh
def test_a_manifest_that_was_changed_after_it_was_signed_is_told(tmp_path: Path) -> None:
    file = sealed(tmp_path, key=keys(tmp_path))
    with zipfile.ZipFile(file) as packed:
        manifest = json.loads(packed.read(MANIFEST))
    manifest["verdicts"][TEST] = "FAIL"
    found = verify(rewritten(file, {MANIFEST: json.dumps(manifest).encode()}))
    assert found.problems == (f"{MANIFEST}: was changed after it was signed",)


@needs_ssh
def test_a_signature_for_another_purpose_is_none_of_a_run(tmp_path: Path) -> None:
    key = keys(tmp_path)
    file = sealed(tmp_path, key=key)
    with zipfile.ZipFile(file) as packed:
        (tmp_path / MANIFEST).write_bytes(packed.read(MANIFEST))
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "git", str(tmp_path / MANIFEST)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    found = verify(rewritten(file, {SIGNATURE: (tmp_path / SIGNATURE).read_bytes()}))
    assert found.problems


def test_an_unsigned_record_does_not_satisfy_who_wants_a_signature(tmp_path: Path) -> None:
    signers = tmp_path / "allowed_signers"
    signers.write_text("")
    assert "has no signature" in verify(sealed(tmp_path), signers=signers).problems[0]


@needs_ssh
def test_a_key_that_is_none_is_told_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "no-key").write_text("nothing")
    with pytest.raises(ClusterQualError, match=r"no-key: ssh-keygen does not sign with it: .*--key"):
        sealed(tmp_path, key=tmp_path / "no-key")
    assert [path.name for path in tmp_path.iterdir() if "zip" in path.name] == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"records.jsonl": b"{}\n"}, r"records.jsonl: was changed: SHA-256 .*, sealed was "),
        ({"ranks/node0.log": b"a rank's wordz\n"}, r"ranks/node0.log: was changed"),
        ({"measurements.jsonl": None}, r"measurements.jsonl: was sealed and is missing"),
        ({"extra.txt": b"more"}, r"extra.txt: was not sealed, somebody has added it"),
    ],
)
def test_what_was_changed_is_named(tmp_path: Path, change: dict[str, bytes | None], problem: str) -> None:
    (found,) = verify(rewritten(sealed(tmp_path), change)).problems
    assert re.match(problem, found)


def test_no_flipped_byte_of_any_part_passes(tmp_path: Path) -> None:
    file = sealed(tmp_path)
    content, drawn = bytearray(file.read_bytes()), random.Random(7)
    with zipfile.ZipFile(file) as packed:
        before = {name: packed.read(name) for name in packed.namelist()}
    for _ in range(200):
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


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a\\..\\outside"])
def test_a_part_cannot_be_written_outside(tmp_path: Path, name: str) -> None:
    file = sealed(tmp_path)
    with zipfile.ZipFile(file) as packed:
        manifest = json.loads(packed.read(MANIFEST))
    manifest["files"][name] = {"sha256": "0" * 64, "size": 4}
    found = verify(rewritten(file, {MANIFEST: json.dumps(manifest).encode(), name: b"evil"}))
    assert f"{name}: is no name of a run's file" in found.problems
    assert not (tmp_path.parent / "outside").exists()


def test_a_part_that_grew_is_not_written_whole(tmp_path: Path) -> None:
    found = verify(rewritten(sealed(tmp_path), {"ranks/node0.log": b"x" * (64 << 20)}))
    assert "ranks/node0.log: was changed" in found.problems[0]


@pytest.mark.parametrize("content", [b"", b"PK", b"a text\n"])
def test_what_is_no_sealed_run_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "none.zip"
    file.write_bytes(content)
    with pytest.raises(ClusterQualError, match=r"none\.zip: is no sealed run"):
        verify(file)


def test_a_zip_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterQualError, match=r"it has no MANIFEST\.json"):
        verify(rewritten(sealed(tmp_path), {MANIFEST: b"[]"}))


def test_a_seal_is_never_written_over(tmp_path: Path) -> None:
    file = sealed(tmp_path)
    with pytest.raises(ClusterQualError, match=r"is there already; give another name with --out"):
        seal(RunFolder.open(tmp_path / "run"), key=None, out=file)


def test_a_verdict_that_does_not_follow_from_the_measurements_is_told(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    lines = (folder.path / "records.jsonl").read_text().replace('"verdict": "PASS"', '"verdict": "FAIL"')
    (folder.path / "records.jsonl").write_text(lines)
    found = verify(seal(RunFolder.open(folder.path), key=None, out=tmp_path / "forged.zip"))
    assert found.problems == ()  # the sums are those of the forged record
    assert [(change.test, str(change.after and change.after.verdict)) for change in found.different] == [(TEST, "PASS")]


def test_the_seal_is_named_after_the_run(tmp_path: Path) -> None:
    assert default_name(tmp_path / "clusterqual-runs" / "20261201T000000Z").name == "20261201T000000Z.clusterqual.zip"
