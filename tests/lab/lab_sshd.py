"""sshd in every host, and a login host that reaches them all by plain ``ssh NAME``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab_host import Host, outside

_SSHD = """\
Port 22
HostKey {keys}/host
AuthorizedKeysFile {keys}/user.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
UsePAM no
UseDNS no
StrictModes no
MaxStartups 100
AllowTcpForwarding yes
PidFile none
"""
_SSH = """\
Host *
    BatchMode yes
    StrictHostKeyChecking yes
    ConnectTimeout 10
"""


class Sshd:
    """Keys and settings of one lab. All hosts share a host key, so exchanged names do not change who is trusted."""

    def __init__(self, state: Path, login: str, hosts: Sequence[Host]) -> None:
        self._login = login
        self._log = state / "log"
        self._keys = state / "ssh"
        self._keys.mkdir(mode=0o700)
        for name in ("host", "user"):
            outside(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(self._keys / name)])
        (self._keys / "sshd_config").write_text(_SSHD.format(keys=self._keys))
        names = ",".join(text for host in hosts for text in (host.name, host.address))
        self._known = f"{names} {(self._keys / 'host.pub').read_text()}"

    def start(self, host: Host) -> None:
        """Start sshd in a host that has just booted; it listens when this returns."""
        argv: list[str | Path] = [
            "/usr/sbin/sshd",
            "-f",
            self._keys / "sshd_config",
            "-E",
            self._log / f"{host.name}-sshd.log",
        ]
        host.run(argv, check=True)
        if host.name == self._login:
            home = host.path("/root/.ssh")
            home.mkdir(mode=0o700)
            (home / "config").write_text(_SSH)
            (home / "known_hosts").write_text(self._known)
            (home / "id_ed25519").touch(mode=0o600)
            (home / "id_ed25519").write_bytes((self._keys / "user").read_bytes())
