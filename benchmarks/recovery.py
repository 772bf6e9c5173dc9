"""What recovery takes, as the product tells it and by an outside clock: ``python benchmarks/recovery.py [KIND...]``.

Every kind of failure is planned in a run of its own on two simulated nodes. Meanwhile this process looks at the lines
that the ranks append, and takes the time with its own clock when one appears: from the first word of the failure to the
first step of the slowest rank that was not done before. Met where both agree within 0.5 s.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLOSE = 0.5  # seconds
LOOK = 0.005
TOLD = ("detection", "restart", "rendezvous", "checkpoint_load", "recovery", "steps_lost")
FAILURES: dict[str, dict[str, Any]] = {
    "kill_rank": {"kill_rank": 1},
    "hang_rank": {"hang_rank": 1},
    "raise_rank": {"raise_rank": 1},
    "fail_save": {"fail_save": 1},
    "sigterm": {"sigterm": True},
    "kill_node": {"kill_node": 1},
    "kill_node-spare": {"kill_node": 0, "go_on": "spare"},
    "kill_node-fewer": {"kill_node": 1, "go_on": "fewer"},
}
PROJECT: dict[str, Any] = {
    "version": 1,
    "project": "recovery",
    "launcher": {"kind": "local", "device": "cpu", "oversubscribe": True},
    "workload": {
        "model": {"layers": 2, "hidden": 128, "heads": 2, "kv_heads": 1, "ffn": 256, "vocab": 256},
        "optimizer": {"name": "adamw", "lr": 3.0e-4}, "precision": "fp32", "sequence_length": 64, "microbatch": 2,
        "global_batch": 16, "steps": 40, "seed": 1,
    },
    "layouts": [{"name": "ddp"}],
}  # fmt: skip


class Watcher(threading.Thread):
    """Notes when lines appear. `taken` are the seconds of the recovery, None until it is seen."""

    def __init__(self, run: Path) -> None:
        super().__init__(daemon=True)
        self._run = run
        self._read: dict[Path, int] = {}
        self._struck: float | None = None
        self._before = 0
        self._again: dict[str, float] = {}  # rank -> when it did its first new step
        self.over = threading.Event()

    @property
    def taken(self) -> float | None:
        return max(self._again.values()) - self._struck if self._again and self._struck is not None else None

    def run(self) -> None:
        while not self.over.wait(LOOK):
            for path in self._run.glob("checkpoints-*/probe/*.jsonl"):
                self._look(path)

    def _look(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole = file.read().rpartition(b"\n")[0]
        except OSError:
            return  # the run has cleared it away
        now = time.monotonic()
        self._read[path] = self._read.get(path, 0) + (len(whole) + 1 if whole else 0)
        rank, _, attempt = path.stem.partition("-attempt")
        for line in map(json.loads, whole.splitlines()):
            if line.get("what") == "fault":
                self._struck = self._struck or now
            elif line.get("what") == "step" and "error" not in line:
                if attempt == "0":
                    self._before = max(self._before, line["step"])
                elif line["step"] > self._before:
                    self._again.setdefault(rank, now)


def measured(kind: str) -> tuple[dict[str, float], float | None]:
    """What the product tells of one failure, and what the watcher saw."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(ROOT / "qualification" / "test_full_run.py", folder)
        plan = {
            "checkpoint": {"every": 10, "mode": "async"}, "failure": {**FAILURES[kind], "at_step": 25},
            "hang_timeout": "5 s", "alone": False, "apart": False,
        }  # fmt: skip
        (folder / "clusterqual.yaml").write_text(json.dumps({**PROJECT, "full_run": plan}))
        watcher = Watcher(folder / "run")
        watcher.start()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nodes=2", "--qual-run-dir=run",
             "--qual-keep-going"], cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        watcher.over.set()
        watcher.join()
        records = folder / "run" / "records.jsonl"
        if not records.exists():
            sys.exit(done.stdout[-3000:])
        judged = [json.loads(line)["judgement"] for line in records.read_text().splitlines()]
        if errors := [judgement["reason"] for judgement in judged if judgement["verdict"] == "ERROR"]:
            print(f"{kind}: {errors[0]}")
        return {j["quantity"]: j["value"] for j in judged if j["quantity"] in TOLD}, watcher.taken


def main(kinds: list[str]) -> int:
    missed = 0
    print(f"{'':16}" + "".join(f"{name:>16}" for name in (*TOLD, "outside", "apart")))
    for kind in kinds or FAILURES:
        told, outside = measured(kind)
        apart = abs(told["recovery"] - outside) if outside is not None and "recovery" in told else None
        missed += apart is None or apart > CLOSE
        shown = [told.get(name) for name in TOLD] + [outside, apart]
        print(f"{kind:16}" + "".join(f"{'-' if v is None else format(v, '.3f'):>16}" for v in shown), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
