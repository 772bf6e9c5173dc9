"""From the project's launcher options to a launcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_clusterqual.errors import LaunchError
from pytest_clusterqual.launch.local import LocalLauncher
from pytest_clusterqual.launch.mpi import MpiLauncher
from pytest_clusterqual.launch.plan import Launcher
from pytest_clusterqual.launch.slurm import SlurmLauncher
from pytest_clusterqual.launch.ssh import SshLauncher
from pytest_clusterqual.model.project import LauncherOptions


def make_launcher(options: LauncherOptions, *, tell: Callable[[str], None] = lambda text: None) -> Launcher:
    """The launcher of `options.kind`; `tell` hears what it waits for. Nothing is started.

    Raises:
        LaunchError: the kind needs hosts and none are given.
    """
    if options.kind == "local":
        return LocalLauncher(device=options.device, oversubscribe=options.oversubscribe)
    common: dict[str, Any] = {
        "device": options.device, "interface": options.interface, "address": options.address, "python": options.python,
    }  # fmt: skip
    if options.kind == "slurm":
        return SlurmLauncher(options=options.slurm, queue_timeout=options.queue_timeout, tell=tell, **common)
    if not options.hosts:
        raise LaunchError(
            f"the {options.kind} launcher needs hosts: name them with --qual-hosts 'gpu[001-016]', or in the project "
            "file as launcher.hosts"
        )
    return (SshLauncher if options.kind == "ssh" else MpiLauncher)(options.hosts, **common)
