"""Faults of how a host is set up: another version, another's name, a wrong clock. Each undoes itself."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import site
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lab_faults_disks import mounted
from lab_host import Host, Impossible

_VERSION_FILES = ("__init__.py", "version.py", "_version.py")
# Everything but the wall clock is passed through; libc's own time() and gettimeofday() do not come here.
_CLOCK = """\
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t id, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, id, now);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec -= BEHIND;
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""


@contextmanager
def old_version(host: Host, package: str, version: str) -> Iterator[None]:
    """On this host the Python package says that it has that version: its `__version__` and its metadata."""
    files = _versioned(package, version)
    with ExitStack() as stack:
        for number, (file, text) in enumerate(files.items()):
            copy = f"/tmp/lab-{package}-{number}"
            host.write(copy, text)
            stack.callback(host.path(copy).unlink)
            stack.enter_context(mounted(host, file, "--bind", copy))
        for cache in {file.parent / "__pycache__" for file in files}:
            if cache.is_dir():  # what Python compiles here must not stand in the folder that all hosts share
                stack.enter_context(mounted(host, cache, "-t", "tmpfs", "cache"))
        yield


def _versioned(package: str, version: str) -> dict[Path, str]:
    """The files that name the package's version, as they read with another one."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None, f"no package {package} here"
    places = [(Path(spec.origin).with_name(name), r"__version__\b.*?= *", f'"{version}"') for name in _VERSION_FILES]
    for name in importlib.metadata.packages_distributions().get(package, ())[:1]:
        for installed in importlib.metadata.distributions(name=name, path=site.getsitepackages()):
            files = installed.files or ()
            places += [(Path(str(file.locate())), "Version: ", version) for file in files if file.name == "METADATA"]
    found = {}
    for file, before, value in places:
        if file.exists():
            text, count = re.subn(rf"^({before}).*$", rf"\g<1>{value}", file.read_text(encoding="utf-8"), flags=re.M)
            if count:
                found[file] = text
    assert found, f"{package} says its version in none of {[str(file) for file, _before, _value in places]}"
    return found


@contextmanager
def swapped_names(host: Host, a: str, b: str) -> Iterator[None]:
    """On this host the names `a` and `b` stand for each other's address: ``ssh a`` reaches b."""
    before = host.read("/etc/hosts")
    other = {a: b, b: a}
    host.write("/etc/hosts", re.sub(rf"\b({a}|{b})\b", lambda name: other[name[0]], before))
    try:
        yield
    finally:
        host.write("/etc/hosts", before)


@contextmanager
def clock_behind(host: Host, seconds: int) -> Iterator[None]:
    """Processes that start on this host meanwhile read a wall clock that is `seconds` behind."""
    if not (compiler := shutil.which("cc")):
        raise Impossible("there is no C compiler here to build the wrong clock")
    library = "/tmp/lab-clock.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", f"-DBEHIND={seconds}", "-xc", "-", "-o", str(host.path(library))],
        input=_CLOCK, text=True, check=True, capture_output=True,
    )  # fmt: skip
    host.write("/etc/ld.so.preload", library)
    try:
        yield
    finally:
        host.path("/etc/ld.so.preload").unlink()
