"""What several tests of the lab look at hosts with."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from lab_host import Host

_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 22), timeout=1)
except OSError as error:
    print(type(error).__name__)
else:
    print("connected")
"""


def until(holds: Callable[[], object]) -> None:
    """Wait until it holds; fail when it takes far too long."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def python(host: Host, code: str, *argv: object, **options: Any) -> str:
    """What a few lines of Python print on a host."""
    done = host.run([sys.executable, "-S", "-c", code, *map(str, argv)], **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def connection(source: Host, target: Host) -> str:
    """What becomes of a connection to sshd: ``connected``, or the name of the error."""
    return python(source, _CONNECT, target.name)
