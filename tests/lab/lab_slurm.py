"""Slurm in a lab: slurmctld on the login host, slurmd on every node, all its files in the lab's own folder."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from lab_host import SYSTEM_PATH, Host, Impossible

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
_SLURM_CONF = """\
ClusterName=lab
SlurmctldHost={login}
SlurmUser=root
AuthType=auth/munge
StateSaveLocation={own}/controller
SlurmdSpoolDir={own}/%n
SlurmctldLogFile={log}/slurmctld.log
SlurmdLogFile={log}/%n-slurmd.log
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=30
KillWait=5
NodeName={nodes} CPUs={cpus} RealMemory=4096 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=60 State=UP
PartitionName=second Nodes=ALL MaxTime=60 State=UP
"""


class Slurm:
    """Settings and keys of one lab; partitions ``debug`` (the default) and ``second``, 4 CPUs a node."""

    def __init__(self, state: Path, login: Host, nodes: Sequence[Host], *, cpus: int = 4) -> None:
        self.check_machine()
        self._login = login
        self._own = state / "slurm"
        for name in ("controller", *(node.name for node in nodes)):
            (self._own / name).mkdir(parents=True)
        self._key = self._own / "munge.key"
        self._key.touch(mode=0o600)
        self._key.write_bytes(os.urandom(1024))
        conf = self._own / "slurm.conf"
        names = ",".join(node.name for node in nodes)
        conf.write_text(_SLURM_CONF.format(login=login.name, own=self._own, log=state / "log", nodes=names, cpus=cpus))
        for host in (login, *nodes):
            host.environment["SLURM_CONF"] = str(conf)

    @staticmethod
    def check_machine() -> None:
        if missing := [name for name in NEEDED if not shutil.which(name, path=SYSTEM_PATH)]:
            raise Impossible(f"the lab's Slurm needs {', '.join(missing)}")

    def start(self, host: Host) -> None:
        """Start this host's daemons; a node is idle when this returns."""
        run = "/run/munge"
        host.run(["munged", f"--key-file={self._key}", f"--pid-file={run}/pid", f"--log-file={run}/log",
                  f"--seed-file={run}/seed"], check=True)  # fmt: skip
        host.run(["slurmctld" if host is self._login else "slurmd"], check=True)
        if host is self._login:
            self._wait(["scontrol", "ping"], "is UP")
        else:
            self._wait(
                ["sinfo", "--noheader", "-n", host.name, "-p", "debug", "-o", "%T"], "idle", "mixed", "allocated"
            )

    def _wait(self, question: Sequence[str], *answers: str) -> None:
        """Ask on the login host until one of the answers comes."""
        deadline = time.monotonic() + 60
        while True:
            done = self._login.run(question)
            if any(answer in done.stdout for answer in answers):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{question} still says: {done.stdout.strip()} {done.stderr.strip()}")
            time.sleep(0.05)
