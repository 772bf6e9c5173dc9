"""Seconds and memory of `clusterqual report` for a large run: ``python benchmarks/report.py [--nodes N] [--tests T]``.

The run is simulated: records as the judges write them, a figure a rank in each that has one, the conditions with the
telemetry of every node in all of them; no raw samples. Measured is the whole command in a process of its own, from
reading the run folder to the page, junit.xml and all plots.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "unit"))
_COMMAND = "import sys; from pytest_clusterqual.cli import main; sys.exit(main())"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--per-node", type=int, default=8)
    parser.add_argument("--tests", type=int, default=200)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        count, ranks = _write(folder, asked.nodes, asked.per_node, asked.tests), asked.nodes * asked.per_node
        size = sum(path.stat().st_size for path in folder.glob("*.jsonl"))
        print(f"{asked.tests} tests on {asked.nodes} x {asked.per_node} = {ranks} ranks: {count} records, "
              f"{size / 1e6:.0f} MB of JSON", flush=True)  # fmt: skip
        began = time.perf_counter()
        command = [sys.executable, "-c", _COMMAND, "report", str(folder)]
        code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
        seconds = time.perf_counter() - began
        page, plots = folder / "report.html", list((folder / "plots").glob("*.svg"))
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy, memory = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
        print(f"clusterqual report: exit {code}, {seconds:.1f} s ({busy:.1f} s of a core), peak {memory / 1e9:.2f} GB; "
              f"a page of {page.stat().st_size / 1e6:.2f} MB, {len(plots)} plots")  # fmt: skip


def _write(path: Path, nodes: int, per_node: int, tests: int) -> int:
    """A run folder in the same bytes as `RunFolder` writes, a thousand times sooner: what repeats is encoded once."""
    from run_made import whole_cluster

    from pytest_clusterqual.model.codec import to_json
    from pytest_clusterqual.runs import RECORD_LINES, RunFolder

    records, _ = whole_cluster(nodes, per_node, tests, samples=False)
    RunFolder.create(path, run="simulated", environment={"project": "simulated"}, simulated=True)
    texts: dict[int, str] = {}

    def encoded(value: object) -> str:
        if id(value) not in texts:
            texts[id(value)] = json.dumps(to_json(value))
        return texts[id(value)]

    with open(path / RECORD_LINES, "w") as file:
        for record in records:
            slim = replace(record, conditions=None, judgement=replace(record.judgement, per_rank={}))
            line = json.dumps(to_json(slim))
            line = line.replace('"per_rank": {}', f'"per_rank": {encoded(record.judgement.per_rank)}', 1)
            file.write(line.replace('"conditions": null', f'"conditions": {encoded(record.conditions)}', 1) + "\n")
    return len(records)


if __name__ == "__main__":
    main()
