"""Which variables of an environment may be recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping

_RECORDED = ("NCCL_", "GLOO_", "TORCH_", "CUDA_", "SLURM_", "OMP_")
_SECRET_NAME = re.compile(r"TOKEN|SECRET|KEY|PASSW|PASSPHRASE|JWT|CREDENTIAL", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"://[^/\s@]*:[^/\s@]*@")


def environment_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that steer communication, threads and the allocation, without secrets."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(_RECORDED) and not _SECRET_NAME.search(name) and not _PASSWORD_IN_URL.search(value)
    }
