"""The batch jobs of docs/slurm.md under a real Slurm: the order to end reaches what the script has started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab_host import SYSTEM_PATH
from lab_hosts import Lab
from lab_probes import until

pytestmark = [pytest.mark.lab(hosts=2, slurm=True), pytest.mark.full]
PAGE = Path(__file__).parents[2] / "docs" / "slurm.md"
SCRIPTS = re.findall(r"```bash\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
# Stands for pytest and for what comes after it: says that it is there, and ends in order when it is told to.
STAND_IN = """#!/bin/bash
echo "${0##*/} $*" >> said
[[ $0 == */pytest ]] || exit 0
trap 'echo told >> said; exit 143' TERM
mkdir -p "run-$SLURM_JOB_ID"
sleep 60 & wait
"""


@pytest.mark.parametrize("script", SCRIPTS, ids=["exec", "trap"])
def test_the_order_to_end_reaches_pytest(script: str, lab: Lab, tmp_path: Path) -> None:
    folder = lab.shared / tmp_path.name
    (folder / "bin").mkdir(parents=True)
    for name in ("pytest", "clusterqual"):
        (folder / "bin" / name).write_text(STAND_IN)
        (folder / "bin" / name).chmod(0o755)
    (folder / "job.sh").write_text(script.replace("--nodes=4", "--nodes=2").replace("02:00:00", "5"))
    path = {"PATH": f"{folder / 'bin'}:{SYSTEM_PATH}"}
    number = lab.login.run(["sbatch", "--parsable", "job.sh"], cwd=folder, env=path, check=True).stdout.strip()
    said = folder / "said"
    until((folder / f"run-{number}").exists)
    lab.login.run(["scancel", "--batch", "--signal=TERM", number], check=True)
    until(lambda: "told" in said.read_text())
    state = ["scontrol", "show", "job", number]
    until(lambda: "ExitCode=143:0" in lab.login.run(state).stdout)
    assert ("clusterqual export" in said.read_text()) == ("trap" in script)
