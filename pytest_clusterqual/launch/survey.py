"""The survey: what this host is made of, captured as one line of JSON on standard output.

It is sent to hosts that may have anything, so it is one file, standard library only, for Python
3.6 or newer: annotations are quoted, because that Python cannot evaluate them. It captures and
understands nothing: `read.survey` makes words of the line. Every group of facts is gathered on a
thread of its own with a time limit, so that a hung driver or file system keeps back its own only.

With the argument ``clock`` it then answers each line of standard input with the time, so that the
asker can tell the offset of this clock from the fastest of several round trips.
"""

import fcntl
import glob
import importlib.util
import json
import os
import platform
import pwd
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

FORMAT = 1
LIMIT = 10.0  # seconds for any group of facts: what answers later than that is broken
DNS_LIMIT = 5.0
_LARGEST = 4 * 1024 * 1024  # characters kept of one command's output
_TOOLS = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/nvidia/bin", "/opt/rocm/bin")
_NO_LIMIT = 2**62  # cgroup v1 writes "no limit" as a number near 2**63
_SIOCGIFADDR = 0x8915
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_PACKAGE = re.compile(r"(?i)(nvidia[_-]nccl[_-]cu\d+)-([^-]+)\.dist-info")
_VERSION = re.compile(r"""^__version__\s*(?::\s*\w+\s*)?=\s*['"]([^'"]+)['"]""", re.MULTILINE)
_SECRET = re.compile(r"TOKEN|SECRET|(?<!_P)KEY|PASS|CREDENTIAL", re.IGNORECASE)  # PKEY is a partition's number
_TOPOLOGY_FILE = "var/run/nvidia-topologyd/virtualTopology.xml"  # NCCL's own default for NCCL_TOPO_FILE
_HOME_CONF = os.path.expanduser("~/.nccl.conf")
_LINK = ("current_link_width", "max_link_width", "current_link_speed", "max_link_speed")
# Accelerators on the PCI bus: vendor -> classes. VGA controllers of AMD may be part of the CPU.
_ACCELERATORS = {"0x10de": ("0x0300", "0x0302"), "0x1002": ("0x0302", "0x0380", "0x1200")}


class Fact(threading.Thread):
    """One group of facts: `value` once it is there, `problem` until then and if it failed."""

    def __init__(self, function: "Any", *args: "Any") -> None:
        super().__init__(daemon=True)
        self._function, self._args = function, args
        self.value = None  # type: Any
        self.problem = f"no answer within {LIMIT:g} s"  # type: str | None
        self.start()

    def run(self) -> None:
        try:
            self.value = self._function(*self._args)
            self.problem = None
        except Exception as error:  # whatever it is, the other facts are still wanted
            self.problem = f"{type(error).__name__}: {error}"


def survey(root: str = "/") -> "dict[str, Any]":
    """All facts; what could not be had is null, with the reason in ``unread``. `root` is for tests."""
    facts = {
        "host": Fact(host, root), "versions": Fact(versions, root), "cpu": Fact(cpu, root),
        "memory": Fact(memory, root), "net": Fact(net, root), "infiniband": Fact(infiniband, root),
        "accelerators": Fact(accelerators, root), "limits": Fact(limits), "shm": Fact(space, "/dev/shm"),
        "temp": Fact(space, tempfile.gettempdir()), "cwd": Fact(space, "."), "settings": Fact(settings, root),
        "reverse_dns": Fact(reverse_dns), "nvidia_smi": Fact(command, "nvidia-smi", "-q", "-x"),
        "nvidia_topo": Fact(command, "nvidia-smi", "topo", "-m"),
        "nvidia_p2p": Fact(command, "nvidia-smi", "topo", "-p2p", "r"), "nccl_topology": Fact(nccl_topology, root),
        "rocm_topo": Fact(command, "rocm-smi", "--showtopo"),
        "rocm_names": Fact(command, "rocm-smi", "--showproductname"),
    }  # fmt: skip
    deadline = time.monotonic() + LIMIT + 1.5  # commands end themselves at LIMIT, which reads better
    for fact in facts.values():
        fact.join(max(0.0, deadline - time.monotonic()))
    found = {"survey": FORMAT}  # type: dict[str, Any]
    found.update((name, fact.value) for name, fact in facts.items())
    found["unread"] = [f"{name}: {fact.problem}" for name, fact in facts.items() if fact.problem]
    found["time"] = time.time()
    return found


def command(*argv: str) -> "dict[str, Any] | None":
    """What a program says; None where there is no such program."""
    path = shutil.which(argv[0], path=os.pathsep.join([os.environ.get("PATH", ""), *_TOOLS]))
    if path is None:
        return None
    process = subprocess.Popen(
        [path, *argv[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        output, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            process.communicate(timeout=1.0)
        except subprocess.TimeoutExpired:
            pass  # inside a hung driver it does not even die
        return {"stdout": "", "code": None, "error": f"no answer within {LIMIT:g} s"}
    text, error = output.decode("utf-8", "replace"), errors.decode("utf-8", "replace").strip()
    return {"stdout": text[:_LARGEST], "code": process.returncode, "error": error[:2000] or None}


def host(root: str) -> "dict[str, Any]":
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return {
        "name": socket.gethostname(), "user": user, "executable": sys.executable,
        "boot": text_of(root, "proc/sys/kernel/random/boot_id"),
    }  # fmt: skip


def versions(root: str) -> "dict[str, str]":
    """Versions by name; what is not installed has none. No package is imported for it."""
    release = re.search(r'^PRETTY_NAME="?([^"\n]*)', text_of(root, "etc/os-release") or "", re.MULTILINE)
    found = {
        "python": platform.python_version(), "kernel": os.uname().release,
        "distribution": release.group(1) if release else None,
        "torch": version_of("torch", "version.py"),
        "pytest_clusterqual": version_of("pytest_clusterqual", "__init__.py"),
        "nvidia_module": text_of(root, "sys/module/nvidia/version"),
        "amdgpu_module": text_of(root, "sys/module/amdgpu/version"),
        "mlx5_core": text_of(root, "sys/module/mlx5_core/version"),
    }  # fmt: skip
    for folder in sys.path:
        for name in os.listdir(folder or ".") if os.path.isdir(folder or ".") else ():
            package = _PACKAGE.match(name)
            if package:
                found.setdefault(package.group(1).lower().replace("-", "_"), package.group(2))
    return {name: version for name, version in found.items() if version}


def version_of(package: str, file: str) -> "str | None":
    """What ``package.__version__`` would be, read from its source: importing torch takes seconds."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.origin:
        return None
    found = _VERSION.search(text_of(os.path.dirname(spec.origin), file) or "")
    return found.group(1) if found else "unknown"


def cpu(root: str) -> "dict[str, Any]":
    model, places = None, set()
    for line in (text_of(root, "proc/cpuinfo", size=4 * 1024 * 1024) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "cpu", "CPU part") and value.strip():
            model = value.strip()
            break
    for folder in glob.glob(os.path.join(root, "sys/devices/system/cpu/cpu[0-9]*/topology")):
        places.add((text_of(folder, "physical_package_id"), text_of(folder, "core_id")))
    numa = {}
    for folder in glob.glob(os.path.join(root, "sys/devices/system/node/node[0-9]*")):
        numa[os.path.basename(folder)[len("node") :]] = text_of(folder, "cpulist") or ""
    return {
        "model": model, "packages": len({package for package, _ in places}) or None, "cores": len(places) or None,
        "online": text_of(root, "sys/devices/system/cpu/online"), "numa": numa, "quota": cpu_quota(root),
        "affinity": sorted(os.sched_getaffinity(0)),
    }  # fmt: skip


def memory(root: str) -> "dict[str, Any]":
    total = re.search(r"^MemTotal:\s*(\d+) kB", text_of(root, "proc/meminfo") or "", re.MULTILINE)
    limits = []
    for folder in cgroups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = text_of(folder, name) or ""
            if text.isdigit() and int(text) < _NO_LIMIT:
                limits.append(int(text))
    return {"total": int(total.group(1)) * 1024 if total else None, "limit": min(limits) if limits else None}


def cpu_quota(root: str) -> "float | None":
    """Number of CPUs that the tightest control group allows, None without a limit."""
    quotas = []
    for folder in cgroups(root, "cpu"):
        quota, _, period = (text_of(folder, "cpu.max") or "").partition(" ")
        pairs = [(quota, period), (text_of(folder, "cpu.cfs_quota_us"), text_of(folder, "cpu.cfs_period_us"))]
        quotas += [int(q) / int(p) for q, p in pairs if q and p and q.isdigit() and p.isdigit() and int(p)]
    return min(quotas) if quotas else None


def cgroups(root: str, controller: str) -> "list[str]":
    """The folders of this process' control groups for a controller, its own first, then those above."""
    found = []
    for line in (text_of(root, "proc/self/cgroup") or "").splitlines():
        _number, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = os.path.join(root, "sys/fs/cgroup", *([controller] if controllers else []))
        parts = [part for part in path.split("/") if part not in ("", "..")]
        # A container may not see its own group's folder; what is visible above it still binds.
        found += [os.path.join(top, *parts[:depth]) for depth in range(len(parts), -1, -1)]
    return found


def net(root: str) -> "list[dict[str, Any]]":
    """Every network interface but the loopback."""
    found = []
    for folder in sorted(glob.glob(os.path.join(root, "sys/class/net/*/"))):
        name = os.path.basename(folder.rstrip("/"))
        if name == "lo":
            continue
        facts = {key: text_of(folder, key) for key in ("operstate", "carrier", "speed", "mtu", "type", "dev_port")}
        hardware = os.path.exists(os.path.join(folder, "device"))
        found.append(dict(
            facts, name=name, device=hardware, bond=os.path.isdir(os.path.join(folder, "bonding")),
            pci=pci_device(os.path.join(folder, "device")) if hardware else None,
        ))  # fmt: skip
    return found


def infiniband(root: str) -> "list[dict[str, Any]]":
    """Every port of every RDMA device, RoCE included."""
    found = []
    for folder in sorted(glob.glob(os.path.join(root, "sys/class/infiniband/*/ports/*/"))):
        device, port = folder.split("/")[-4], folder.split("/")[-2]
        top = os.path.join(root, "sys/class/infiniband", device)
        facts = {key: text_of(folder, key) for key in ("state", "phys_state", "rate", "link_layer")}
        interfaces = sorted(os.path.basename(path) for path in glob.glob(os.path.join(top, "device/net/*")))
        mine = [i for i in interfaces if text_of(root, "sys/class/net", i, "dev_port") == str(int(port) - 1)]
        named = text_of(folder, "gid_attrs/ndevs/0")
        found.append(dict(
            facts, device=device, port=int(port), firmware=text_of(top, "fw_ver"),
            interface=named or next(iter(mine or interfaces), None), pci=pci_device(os.path.join(top, "device")),
        ))  # fmt: skip
    return found


def accelerators(root: str) -> "list[dict[str, Any]]":
    """GPUs as the PCI bus has them, in the order of their addresses: there without any driver."""
    found = []
    for folder in sorted(glob.glob(os.path.join(root, "sys/bus/pci/devices/*"))):
        vendor, kind = text_of(folder, "vendor"), text_of(folder, "class") or ""
        if kind[: len("0x0300")] in _ACCELERATORS.get(vendor or "", ()):
            memory = text_of(folder, "mem_info_vram_total")
            found.append({"vendor": vendor, "pci": pci_device(folder), "memory": memory})
    return found


def pci_device(path: str) -> "dict[str, Any] | None":
    """The PCI device at or above a device folder: virtio and others hang below theirs."""
    folder = os.path.realpath(path)
    while folder != os.path.dirname(folder):
        if _PCI_ADDRESS.fullmatch(os.path.basename(folder)):
            facts = {key: text_of(folder, key) for key in ("numa_node", *_LINK)}
            return dict(facts, address=os.path.basename(folder))
        folder = os.path.dirname(folder)
    return None


def limits() -> "dict[str, Any]":
    """Soft limits of this process, -1 for none; `open_files_hard` is how far the soft one may be raised."""
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {"open_files": files, "open_files_hard": hard, "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]}


def space(path: str) -> "dict[str, Any]":
    """Bytes of a file system, and how many of them this user may still write."""
    found = os.statvfs(path)
    return {"path": os.path.abspath(path), "total": found.f_blocks * found.f_frsize,
            "free": found.f_bavail * found.f_frsize}  # fmt: skip


def settings(root: str) -> "dict[str, str]":
    """What steers NCCL and gloo here: variables, and the files that NCCL reads on its own."""
    found = {
        name: value for name, value in sorted(os.environ.items())
        if name.startswith(("NCCL_", "GLOO_")) and not _SECRET.search(name)
    }  # fmt: skip
    for name, path in (("/etc/nccl.conf", os.path.join(root, "etc/nccl.conf")), ("~/.nccl.conf", _HOME_CONF)):
        text = text_of(path, size=4096)
        if text is not None:
            found[name] = text
    return found


def nccl_topology(root: str) -> "dict[str, Any] | None":
    """The file from which NCCL takes the topology here, as virtual machines have one; None without it."""
    text = text_of(os.environ.get("NCCL_TOPO_FILE") or os.path.join(root, _TOPOLOGY_FILE), size=_LARGEST)
    return None if text is None else {"stdout": text, "code": 0, "error": None}


def reverse_dns() -> "dict[str, Any] | None":
    """How long this host takes to find its own name by its address; None without an address.

    torch's store asks for it on every connection, and waits.
    """
    addresses = [address for address in (address_of(name) for _index, name in socket.if_nameindex()) if address]
    if not addresses:
        return None
    began = time.monotonic()
    lookup = Fact(socket.gethostbyaddr, addresses[0])
    lookup.join(DNS_LIMIT)
    answered = not lookup.is_alive()
    return {"address": addresses[0], "seconds": time.monotonic() - began, "answered": answered}


def address_of(interface: str) -> "str | None":
    if interface == "lo":
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            answer = fcntl.ioctl(handle.fileno(), _SIOCGIFADDR, struct.pack("256s", interface[:15].encode()))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def text_of(*path: str, size: int = 65536) -> "str | None":
    """The content of a small file without blanks around it, None where it cannot be read."""
    try:
        with open(os.path.join(*path), "rb") as file:
            return file.read(size).decode("utf-8", "replace").strip()
    except OSError:
        return None


def answer_clock() -> None:
    for _line in iter(sys.stdin.readline, ""):
        tell({"time": time.time()})


def tell(value: "dict[str, Any]") -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    tell(survey())
    if "clock" in sys.argv[1:]:
        answer_clock()
