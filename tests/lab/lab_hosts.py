"""A lab: several hosts, the switch between them, and the services they come up with.

It needs root and, of Debian: openssh-server, openssh-client and iproute2; for `slurm` also
slurmctld, slurmd, slurm-client and munge; for faults nftables and ethtool, and for a slow disk
e2fsprogs, for a wrong clock a C compiler.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from lab_cgroups import cores_of_this_machine, make_cgroup, own_cgroups
from lab_host import SYSTEM_PATH, Host, Impossible, children, ip
from lab_slurm import Slurm
from lab_sshd import Sshd
from lab_state import CGROUPS, new_state, sweep

LOGIN = "login"
NETWORK = "10.77.0"
LOGIN_ADDRESS = f"{NETWORK}.254"
KEEPER = Path(__file__).with_name("lab_keeper.py")
NEEDED = ("unshare", "nsenter", "setsid", "setpriv", "ip", "ssh", "ssh-keygen", "sshd")


class Service(Protocol):
    """Something that runs in hosts and is started again after a reboot."""

    def start(self, host: Host) -> None: ...


class Lab:
    """Hosts ``node1`` to ``nodeN`` and ``login``, each with network, processes and files of its own.

    Nothing is put into this machine's own network or file system but a folder below the temporary
    one, in which `shared` is at the same path in all hosts and outside. `slurm` adds Slurm with the
    nodes in two partitions. With `pin`, node i runs on core i only (modulo the cores there are).
    """

    def __init__(self, hosts: int = 2, *, slurm: bool = False, pin: bool = False) -> None:
        self._check_machine(pin)
        self.state, self._lock = new_state()
        self.shared = self.state / "shared"
        self.services: list[Service] = []
        self.keeper: subprocess.Popen[str] | None = None
        try:
            for folder in ("shared", "log"):
                (self.state / folder).mkdir()
            anchor = self._start_keeper()
            self.hosts = self._make_hosts(hosts, anchor)
            self._make_cgroups(pin)
            self.login, *self.nodes = self.hosts.values()
            for host in self.hosts.values():
                host.boot()
            self.serve(Sshd(self.state, LOGIN, list(self.hosts.values())))
            if slurm:
                self.serve(Slurm(self.state, self.login, self.nodes))
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _check_machine(pin: bool) -> None:
        if os.geteuid() != 0:
            raise Impossible("the lab needs root: it makes namespaces and mounts")
        if missing := [name for name in NEEDED if not shutil.which(name, path=SYSTEM_PATH)]:
            raise Impossible(f"the lab needs {', '.join(missing)}")
        if pin and "cpuset" not in own_cgroups():
            raise Impossible("the lab cannot pin hosts to cores: there is no cpuset controller of cgroup version 1")

    def _start_keeper(self) -> int:
        """Start the keeper, make the switch; return the pid of the anchor."""
        with (self.state / "log" / "keeper.log").open("w") as errors:
            self.keeper = subprocess.Popen(
                [sys.executable, "-E", "-S", KEEPER, str(self.state), str(os.getpid())],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True, pass_fds=[self._lock],
            )  # fmt: skip
        assert self.keeper.stdout is not None
        told = self.keeper.stdout.readline()
        if not told:
            raise Impossible(f"no namespaces here: {Path(errors.name).read_text().strip()}")
        anchor = children(int(told))[0]  # unshare, init
        ip(anchor, "link set lo up", "link add switch type bridge", "link set switch up")
        return anchor

    def _make_hosts(self, count: int, anchor: int) -> dict[str, Host]:
        addresses = {LOGIN: LOGIN_ADDRESS} | {f"node{i}": f"{NETWORK}.{i}" for i in range(1, count + 1)}
        names = "127.0.0.1 localhost\n::1 localhost\n"
        names += "".join(f"{address} {name}\n" for name, address in addresses.items())
        return {
            name: Host(name, address, state=self.state, anchor=anchor, names=names)
            for name, address in addresses.items()
        }

    def _make_cgroups(self, pin: bool) -> None:
        own = {name: path for name, path in own_cgroups().items() if pin or name != "cpuset"}
        ours = {name: path / f"clusterqual-lab-{self.state.name}" for name, path in own.items()}
        (self.state / CGROUPS).write_text("".join(f"{path}\n" for path in ours.values()))
        cores = cores_of_this_machine(own["cpuset"]) if pin else []
        for controller, path in ours.items():
            make_cgroup(path, controller)
            for index, (name, host) in enumerate(self.hosts.items()):
                only = [cores[(index - 1) % len(cores)]] if pin and name != LOGIN else []
                host.cgroups[controller] = make_cgroup(path / name, controller, only)

    def serve(self, service: Service) -> None:
        """Start a service in every host, now and after each reboot."""
        self.services.append(service)
        for host in self.hosts.values():
            service.start(host)
        for host in self.hosts.values():
            host.came_up()

    def reboot(self, name: str) -> None:
        """End a host, unless it is dead already, and bring it up again with its services."""
        host = self[name]
        host.kill()
        host.boot()
        for service in self.services:
            service.start(host)
        host.came_up()

    def revive(self) -> None:
        """Boot every host that is dead."""
        for name, host in self.hosts.items():
            if not host.alive:
                self.reboot(name)

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    @property
    def hosts_arg(self) -> str:
        """The nodes as one host list: ``node[1-4]``."""
        return f"node[1-{len(self.nodes)}]"

    def close(self) -> None:
        """Take everything down. May be called again."""
        if self.keeper is not None:
            assert self.keeper.stdin is not None and self.keeper.stdout is not None
            self.keeper.stdin.close()
            self.keeper.wait(60)
            self.keeper.stdout.close()
            self.keeper = None
        for host in getattr(self, "hosts", {}).values():
            host.forget()
        if self._lock >= 0:
            sweep(self.state)  # the keeper has done it, unless it was killed
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
