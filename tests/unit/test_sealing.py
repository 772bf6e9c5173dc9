"""A run becomes one file that holds everything, its page included, and is signed by whoever wants to."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from recorded_made import PROJECT, TEST, recorded
from seal_made import keys, needs_ssh, resealed, rewritten, run_folder, sealed, told_otherwise

from pytest_clusterqual.cli import main
from pytest_clusterqual.errors import ClusterQualError, RunFolderError
from pytest_clusterqual.folder.leases import write_alone
from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.recorded import sealing
from pytest_clusterqual.recorded.merging import merge
from pytest_clusterqual.recorded.sealing import MANIFEST, SIGNATURE, default_name, seal
from pytest_clusterqual.recorded.verifying import as_lines, verify

RECORDS = {"environment.json", "measurements.jsonl", "records.jsonl", "tests.json", "clusterqual.yaml", MANIFEST}


def names(file: Path) -> set[str]:
    with zipfile.ZipFile(file) as packed:
        return set(packed.namelist())


def content(file: Path, name: str) -> str:
    with zipfile.ZipFile(file) as packed:
        return packed.read(name).decode()


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


# -- what is in it -------------------------------------------------------------------------------


def test_a_seal_holds_everything(tmp_path: Path) -> None:
    file = sealed(tmp_path)
    assert names(file) == RECORDS | {"ranks/node0.log", "report.html"}
    assert content(file, "clusterqual.yaml") == PROJECT
    assert content(file, "report.html") == "<title>the page</title>\n"


def test_a_run_without_a_page_is_sealed_with_one_and_stays_as_it_was(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    before = stamps(run.path)
    made = seal(run, key=None, out=tmp_path / "run.zip")
    reports = {"report.html", "decision.json", "decision.md", "plots/ddp-2nodes-memory.svg"}
    assert set(made.made) == reports
    assert names(made.file) == RECORDS | reports
    page = content(made.file, "report.html")
    assert run.run in page and "412 MiB" in page and "<svg" in page
    assert stamps(run.path) == before
    assert verify(made.file).holds


def test_a_page_of_earlier_records_is_made_again(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    os.utime(run / "report.html", (1e9, 1e9))  # as a run that was resumed and interrupted leaves it
    made = seal(RunFolder.open(run), key=None, out=tmp_path / "run.zip")
    assert "412 MiB" in content(made.file, "report.html")
    assert (run / "report.html").read_text() == "<title>the page</title>\n"


def test_links_are_told_and_hidden_files_left_out(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    (run / "latest").symlink_to(run / "ranks")
    (run / "ranks" / "node1.log").symlink_to(run / "ranks" / "node0.log")
    (run / ".cache").write_text("")
    made = seal(RunFolder.open(run), key=None, out=tmp_path / "run.zip")
    assert made.left_out == ("latest", "ranks/node1.log")
    assert not {"latest", "ranks/node1.log", ".cache"} & names(made.file)


@pytest.mark.parametrize("name", ["a\\b", "a\nb", "a\x1b[2J", os.fsdecode(b"\xff")])
def test_a_name_that_is_not_the_same_everywhere_is_refused(tmp_path: Path, name: str) -> None:
    run = run_folder(tmp_path / "run")
    (run / name).write_text("")
    with pytest.raises(RunFolderError, match="a seal holds no such name; rename it, or move it away"):
        seal(RunFolder.open(run), key=None, out=tmp_path / "run.zip")


def test_the_project_file_in_it_is_the_recorded_one(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run")
    (run / "clusterqual.yaml").write_text("version: 2\n")
    assert content(resealed(run), "clusterqual.yaml") == PROJECT
    RunFolder.open(run).update_environment({"project_file": f"{PROJECT}# \ud800"})
    assert content(resealed(run), "clusterqual.yaml") == f"{PROJECT}# ?"


def test_a_seal_is_never_written_over(tmp_path: Path) -> None:
    file = sealed(tmp_path)
    with pytest.raises(ClusterQualError, match=r"is there already; give another name with --out"):
        seal(RunFolder.open(tmp_path / "run"), key=None, out=file)


def test_of_two_seals_of_one_name_made_at_once_only_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out, write = RunFolder.open(run_folder(tmp_path / "run")), tmp_path / "run.zip", sealing._write

    def overtaken(file: Path, *arguments: Any) -> None:
        monkeypatch.setattr(sealing, "_write", write)
        write(file, *arguments)
        seal(run, key=None, out=out)

    monkeypatch.setattr(sealing, "_write", overtaken)
    with pytest.raises(ClusterQualError, match=r"is there already; give another name with --out"):
        seal(run, key=None, out=out)
    assert verify(out).holds and not list(tmp_path.glob(".*"))


def test_nothing_is_put_into_a_run(tmp_path: Path) -> None:
    run, other = RunFolder.open(run_folder(tmp_path / "run")), RunFolder.open(run_folder(tmp_path / "other"))
    before = stamps(run.path)
    for out in (run.path / "in.zip", run.path / "plots" / "in.zip"):
        with pytest.raises(RunFolderError, match=r"lies in the run folder .*run, .*; give another place with --out"):
            seal(other, key=None, out=out)
    with pytest.raises(RunFolderError, match=r"lies in the run folder .*run, .*; give another folder with --extract"):
        verify(seal(other, key=None, out=tmp_path / "other.zip").file, extract=run.path / "opened")
    with pytest.raises(RunFolderError, match=r"lies in the run folder .*run, .*; give another folder with --out"):
        merge([other.path], run.path / "merged")
    assert stamps(run.path) == before


def test_a_run_that_is_still_written_is_not_sealed(tmp_path: Path) -> None:
    run, out = RunFolder.open(run_folder(tmp_path / "run")), tmp_path / "run.zip"
    end = write_alone(run.path)
    with pytest.raises(RunFolderError, match=rf"run: is being written by another session \(pid {os.getpid()} on .*\);"):
        seal(run, key=None, out=out)
    assert not out.exists()
    end()
    assert verify(seal(run, key=None, out=out).file).holds


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, listed = RunFolder.open(run_folder(tmp_path / "run")), os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("ranks"):
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(RunFolderError, match=r"ranks: cannot be read: Permission denied; a seal holds every file"):
        seal(run, key=None, out=tmp_path / "run.zip")


def test_a_run_that_cannot_be_read_leaves_no_seal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = run_folder(tmp_path / "run"), tmp_path / "run.zip"
    (run / "tests.json").write_text("{")
    assert main(["seal", str(run), "--out", str(out)]) == 4
    told = capsys.readouterr()
    assert "tests.json" in told.err and "sealed" not in told.out
    assert not out.exists()


def test_a_part_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, run = Path.open, RunFolder.open(run_folder(tmp_path / "run"))

    def refuse(path: Path, *arguments: Any, **named: Any) -> Any:
        if path.name == "node0.log":
            raise PermissionError(13, "Permission denied")
        return opened(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ClusterQualError, match=r"node0\.log: cannot be read: Permission denied; a seal"):
        seal(run, key=None, out=tmp_path / "run.zip")
    assert not list(tmp_path.glob("*.zip*")) and not list(tmp_path.glob(".*"))


def test_the_seal_is_named_after_the_run(tmp_path: Path) -> None:
    assert default_name(tmp_path / "clusterqual-runs" / "20261201T000000Z").name == "20261201T000000Z.clusterqual.zip"


# -- what is told while the run is at hand -------------------------------------------------------


def test_what_will_not_be_found_to_follow_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "run")
    (run / "latest").symlink_to(run / "ranks")
    text = (run / "environment.json").read_text()
    (run / "environment.json").write_text(text.replace('"project_file"', '"no_project_file"'))
    assert main(["seal", str(run), "--out", str(tmp_path / "run.zip")]) == 0
    err = capsys.readouterr().err
    assert "NOT JUDGED the verdicts cannot be judged again: the run recorded no project file; judge" in err
    assert "left out   latest: a link" in err


def test_of_a_sound_run_nothing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seal", str(run_folder(tmp_path / "run")), "--out", str(tmp_path / "run.zip")]) == 0
    assert capsys.readouterr().err == ""


# -- the signature -------------------------------------------------------------------------------


@needs_ssh
def test_a_signature_is_of_its_key_and_only_a_trusted_key_is_trusted(tmp_path: Path) -> None:
    key = keys(tmp_path)
    file = sealed(tmp_path, key=key)
    alone = verify(file)
    assert alone.problems == () and alone.signed and "ED25519" in alone.signer and "nobody vouches" in alone.signer
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
    found = verify(told_otherwise(file, lambda manifest: manifest["verdicts"].update({TEST: "FAIL"})))
    assert found.problems == (f"{MANIFEST} is not what {SIGNATURE} was made of: one of them was changed",)


@needs_ssh
def test_a_signature_for_another_purpose_is_none_of_a_run(tmp_path: Path) -> None:
    key = keys(tmp_path)
    file = sealed(tmp_path, key=key)
    (tmp_path / MANIFEST).write_text(content(file, MANIFEST))
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", "git", str(tmp_path / MANIFEST)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    found = verify(rewritten(file, {SIGNATURE: (tmp_path / SIGNATURE).read_bytes()}))
    assert found.problems and not found.signed


@needs_ssh
def test_without_ssh_here_the_parts_are_checked_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = rewritten(sealed(tmp_path, key=keys(tmp_path)), {"ranks/node0.log": b"others\n"})
    monkeypatch.setenv("PATH", "")
    found = verify(file)
    signature, part = found.problems
    assert signature == (
        f"{SIGNATURE}: cannot start ssh-keygen: No such file or directory; ssh-keygen of OpenSSH checks it"
    )
    assert "nobody has signed" not in str(as_lines(found))
    assert part.startswith("ranks/node0.log: was changed")


def test_an_unsigned_record_does_not_satisfy_who_wants_a_signature(tmp_path: Path) -> None:
    file, signers = sealed(tmp_path), tmp_path / "allowed_signers"
    with pytest.raises(ClusterQualError, match=r"allowed_signers: there is no such file"):
        verify(file, signers=signers)
    signers.write_text("")
    assert "has no signature" in verify(file, signers=signers).problems[0]


@needs_ssh
def test_a_key_whose_passphrase_nobody_can_be_asked_for_is_told(tmp_path: Path) -> None:
    key = keys(tmp_path)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key)], check=True, stdin=subprocess.DEVNULL)
    with pytest.raises(ClusterQualError, match=r"passphrase.*; seal in a terminal, .* or put the key into ssh-agent"):
        sealed(tmp_path, key=key)


@needs_ssh
def test_a_key_that_is_none_is_told_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "no-key").write_text("nothing")
    with pytest.raises(ClusterQualError, match=r"no-key: ssh-keygen does not sign with it: .*--key"):
        sealed(tmp_path, key=tmp_path / "no-key")
    assert [path.name for path in tmp_path.iterdir() if "zip" in path.name] == []
