"""A training script of the user's own, and what the process beside each of its ranks saw of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_clusterqual.model.codec import to_json

RUN, STEPS, RANKS, NODES, RESTARTS = "{run}", "{steps}", "{ranks}", "{nodes}", "{restarts}"
WORDS = (RUN, STEPS, RANKS, NODES)  # what stands for something in the command and its environment
# What stands in a launcher line for what is known only once it is started.
LINE = (NODES, "{node_rank}", "{nproc_per_node}", RANKS, "{address}", "{port}", RESTARTS)
# What lies in the folder of one run: the lines of its probes, the words of the processes beside its ranks, what the
# ranks printed, and the folder that {run} stands for.
PROBES, BESIDE, OUTPUT, OWN = "probe", "beside", "output", "own"


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandJob:
    """`words` are a Python script or ``-m`` and a module, and their arguments; torchrun starts them on every rank, or
    the `launcher_line`, which is run on every node.

    In `words` and in the values of `environment` ``{run}`` stands for a folder that each run has for itself and all
    nodes see, ``{steps}`` for the number of steps that a criterion wants: `steps` is that of the fixed work.
    ``{ranks}`` and ``{nodes}`` are how many of them the launch has. `folder` (absolute) is where they run.
    `tokens_per_step` and `sequences_per_step` are of the whole job, None where its own lines tell them. With `log`
    what a rank prints is read instead of the probe's lines, by `pattern` or as one of the known trainers prints it.
    `time_limit` of a run is in seconds, None: the launcher's.
    """

    name: str
    words: tuple[str, ...]
    folder: str
    environment: dict[str, str] = field(default_factory=dict)
    steps: int | None = None
    tokens_per_step: int | None = None
    sequences_per_step: int | None = None
    launcher_line: tuple[str, ...] = ()
    log: bool = False
    pattern: str | None = None
    time_limit: float | None = None

    @property
    def takes_steps(self) -> bool:
        """Whether it is told how many steps to do."""
        return any(STEPS in word for word in (*self.words, *self.environment.values()))

    def filled(self, word: str, *, run: str, steps: int | None, ranks: int, nodes: int) -> str:
        """A word, or a value of the environment, with what its placeholders stand for."""
        for placeholder, meant in ((STEPS, steps), (RANKS, ranks), (NODES, nodes), (RUN, run)):
            word = word.replace(placeholder, str(meant))
        return word

    def fingerprint(self, *, versions: Mapping[str, str], script: str) -> str:
        """Sixteen hex digits that change whenever the command, its script (by digest) or its software does.

        Where it runs, how long it may, and how its log is read are not part of it.
        """
        job = {**to_json(self), "folder": None, "time_limit": None, "log": None, "pattern": None}
        if not self.launcher_line:
            del job["launcher_line"]  # it is the same job as before there could be one
        text = json.dumps([job, dict(sorted(versions.items())), script], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStart:
    """One process of the command as it begins, told by the process beside it on the same node.

    `began` is in seconds of the host's monotonic clock. `machine_memory` is the RAM of the host in bytes,
    `group_memory` the tightest limit of its control groups, None without one, and `group` names that control group
    across ranks. `script` is the digest of the script or module, empty where there is no such file.
    """

    rank: int
    local_rank: int
    world: int
    attempt: int
    node: str
    host: str
    pid: int
    device: str
    cores: tuple[int, ...]
    versions: dict[str, str]
    script: str
    machine_memory: int
    group_memory: int | None
    group: str
    began: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnd:
    """How that process ended: its exit code, negative for a signal, and the most host memory that it had, bytes.

    `probed` is how many bytes the probes of this rank had written by then, `taken` the core-seconds that other work
    took from its cores, and those there were. `said` are the last lines that it printed, where it ended badly.
    """

    code: int
    ended: float
    out_of_memory: bool
    host_peak: int
    probed: int
    taken: tuple[float, float]
    said: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandProcess:
    """`end` is None where the process beside it was gone before it could tell."""

    start: RankStart
    end: RankEnd | None

    def __str__(self) -> str:
        return f"rank {self.start.rank} on {self.start.node}"


def probed_bytes(probes: Path, rank: int) -> int:
    """How many bytes of a rank's probes are in their folder, as it is seen from here."""
    return sum(path.stat().st_size for path in probes.glob(f"rank{rank}-attempt*.jsonl"))
