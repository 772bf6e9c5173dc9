"""A launch together with the channel to its ranks: what warm ranks and full runs have in common."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pytest_clusterqual import channel as channel_module
from pytest_clusterqual.channel import Channel
from pytest_clusterqual.errors import ClusterQualError
from pytest_clusterqual.launch.agents import Launch
from pytest_clusterqual.launch.plan import Launcher, LaunchPlan


def backend_of(device: Literal["cpu", "cuda"]) -> str:
    """What the process groups of ranks on this device are made with."""
    return "nccl" if device == "cuda" else "gloo"


class Wire:
    """All agents of one launch, and the store they and the session talk through."""

    def __init__(self, launcher: Launcher, plan: LaunchPlan, *, logs: Path) -> None:
        """Start all agents, then serve their store: `plan.store` names the address, the port is chosen here."""
        server = channel_module.listen(launcher.address)
        secret = secrets.token_bytes(32)
        self.plan = replace(plan, store=(launcher.address, server.getsockname()[1]))
        try:
            self.launch = Launch(launcher, self.plan, secret=secret.hex(), logs=logs)
        except BaseException:
            server.close()
            raise
        try:
            # Importing torch here takes as long as it takes the agents, so it costs no time.
            self._store = channel_module.host(server)
            self.channel = Channel(self._store, secret, plan.launch)
        except ImportError:
            self.launch.end()
            raise ClusterQualError(
                "torch is not installed in this environment, so no rank can run: pip install torch"
            ) from None
        except BaseException:
            self.launch.end()
            raise

    def close(self) -> None:
        self.launch.end()


class Pause:
    """Sleep between two looks: a fraction of a millisecond at first, 20 ms once it takes long.

    A look costs about 10 microseconds on a core that may belong to a rank that is being measured.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._looked_long_ago = self._began
        self.slow = False

    def __call__(self) -> None:
        waited = time.monotonic() - self._began
        time.sleep(0.0002 if waited < 0.05 else 0.002 if waited < 0.5 else 0.02)
        now = time.monotonic()
        self.slow = now - self._looked_long_ago > 0.05
        if self.slow:
            self._looked_long_ago = now
