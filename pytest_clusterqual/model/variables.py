"""Which variables of an environment may be recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping

_RECORDED = ("NCCL_", "GLOO_", "TORCH_", "CUDA_", "SLURM_", "OMP_")
_SECRET_NAME = re.compile(r"TOKEN|SECRET|KEY|PASSW|PASSPHRASE|JWT|CREDENTIAL", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"://[^/\s@]*:[^/\s@]*@")
# Each stands for an option that is left out. Of this prefix nothing else is read, so nothing else is recorded.
_OPTIONS = tuple(
    f"CLUSTERQUAL_{name}"
    for name in (
        "NODES", "NPROC_PER_NODE", "CONFIG", "LAUNCHER", "HOSTS", "RESUME", "REPLAY", "BASELINE", "TOLERANCE",
        "RUN_DIR", "REPORT",
    )
)  # fmt: skip


def environment_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that steer communication, threads, the allocation and this package, without secrets."""
    steering = {name: value for name, value in environ.items() if name.startswith(_RECORDED)}
    return {
        name: value
        for name, value in sorted({**steering, **given_options(environ)}.items())
        if not _SECRET_NAME.search(name) and not _PASSWORD_IN_URL.search(value)
    }


def given_options(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that stand for an option; an empty one says nothing."""
    return {name: environ[name] for name in _OPTIONS if environ.get(name)}
