"""The unchanged `qualification/` of this repository, run on a lab from its login host."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab_hosts import Lab

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Suite:
    """One run of the suite that has ended."""

    code: int
    out: str
    folder: Path

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "records.jsonl").read_text().splitlines()]

    @property
    def verdicts(self) -> dict[str, str]:
        """Criterion -> its verdicts in alphabetical order, figures without a requirement left out."""
        found: dict[str, set[str]] = {}
        for record in self.records:
            if record["judgement"]["verdict"] != "MEASURED":
                found.setdefault(record["criterion"], set()).add(record["judgement"]["verdict"])
        return {criterion: " ".join(sorted(verdicts)) for criterion, verdicts in found.items()}

    @property
    def only_loaded(self) -> bool:
        """True if nothing went wrong but that other work on this machine left a timing open."""
        bad = [r["judgement"] for r in self.records if r["judgement"]["verdict"] not in ("PASS", "MEASURED")]
        return bool(bad) and all(j["verdict"] == "UNDECIDED" for j in bad)


def run_suite(lab: Lab, name: str, *options: str, before: tuple[str, ...] = (), timeout: float = 900) -> Suite:
    """Run it to its end; `before` are words in front of the command, such as salloc with its options.

    Other work on the machine may leave a timing UNDECIDED: then it is asked once more.
    """
    for attempt in (1, 2):
        folder = lab.shared / f"{name}-{attempt}"
        argv = [
            *before, sys.executable, "-m", "pytest", "qualification/", "-p", "no:cacheprovider",
            "--qual-run-dir", str(folder), *options,
        ]  # fmt: skip
        done = lab.login.run(argv, cwd=REPOSITORY, timeout=timeout)
        suite = Suite(done.returncode, done.stdout + done.stderr, folder)
        if suite.code == 0 or not suite.records or not suite.only_loaded:
            break
    return suite


def queue(lab: Lab) -> str:
    """What Slurm still runs or holds."""
    command = ["squeue", "--noheader", "--format", "%T"]
    return lab.login.run(command).stdout.replace("COMPLETING", "").strip()
