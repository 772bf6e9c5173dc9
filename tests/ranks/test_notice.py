"""SIGTERM to a rank: heard at once, also where a collective waits; a step that never ends does not hold the process."""

from __future__ import annotations

import signal
import subprocess
import sys

BEFORE = """
import ctypes, os, signal, sys, threading, time
from pytest_clusterqual.rank.notice import Notice

def locked():  # a wait that no signal interrupts, as that of a collective
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)

def steps(notice, count, seconds=0.005):
    for _ in range(count):
        time.sleep(seconds)
        notice.alive()
"""


def ended(code: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", BEFORE + code], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_it_is_heard_and_ends_nothing() -> None:
    code, out = ended("""
import pytest_clusterqual.rank.notice as module
module.LEAST_PATIENCE = 3600.0
with Notice() as notice:
    notice.alive()
    before = notice.given
    os.kill(os.getpid(), signal.SIGTERM)
    while not notice.given:
        steps(notice, 1)
    notice.agree()
    steps(notice, 5)
print(before, notice.given, notice.agreed)
""")
    assert (code, out) == (0, "False True True\n")


def test_a_step_that_never_ends_ends_the_process() -> None:
    code, _out = ended("""
import pytest_clusterqual.rank.notice as module
module.LEAST_PATIENCE = 0.2
with Notice() as notice:
    notice.alive()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
    locked()
""")
    assert code == 128 + signal.SIGTERM


def test_what_comes_after_all_have_agreed_may_take_its_time() -> None:
    code, out = ended("""
import pytest_clusterqual.rank.notice as module
module.LEAST_PATIENCE = 3600.0
with Notice() as notice:
    (watching,) = [thread for thread in threading.enumerate() if thread.name == "notice"]
    notice.alive()
    os.kill(os.getpid(), signal.SIGTERM)
    steps(notice, 1)
    notice.agree()
    watching.join(30)
    print("watched" if watching.is_alive() else "saved")
""")
    assert (code, out) == (0, "saved\n")


def test_a_step_gets_as_long_as_those_before() -> None:
    code, out = ended("""
import types
import pytest_clusterqual.rank.notice as module
module.LEAST_PATIENCE = 0.05
with Notice() as notice:
    for now in (1.0, 1001.0):  # one step, and it was long
        module.time = types.SimpleNamespace(monotonic=lambda: now)
        notice.alive()
    os.kill(os.getpid(), signal.SIGTERM)
    steps(notice, 2, seconds=0.3)
    notice.agree()
print("done")
""")
    assert (code, out) == (0, "done\n")


def test_afterwards_it_ends_the_process_as_ever() -> None:
    code, _out = ended("""
with Notice():
    pass
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(10)
""")
    assert code == -signal.SIGTERM
