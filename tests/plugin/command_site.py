"""A site whose job is a training script of its own, on the standard library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sites import Site, make_site

# Standard library only, so that a launch costs no second import of torch: ranks sum a number over a socket, which has
# a name and no port: one that was free when it was chosen may be somebody else's by now.
PEERS = """\
import os, socket, struct, time
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def connect():
    where = "\\0peers-%d-%s" % (os.stat(".").st_ino, os.environ["MASTER_PORT"])
    if RANK == 0:
        server = socket.socket(socket.AF_UNIX)
        server.bind(where)
        server.listen()
        return [server.accept()[0] for _ in range(WORLD - 1)]
    for _ in range(6000):
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.connect(where)
            return [peer]
        except OSError:
            time.sleep(0.01)

def received(peer):
    data = peer.recv(8)
    if not data:
        raise ConnectionError("Connection closed by peer")
    return struct.unpack("d", data)[0]

def summed(peers, value):
    if RANK:
        peers[0].sendall(struct.pack("d", value))
        return received(peers[0])
    value += sum(map(received, peers))
    for peer in peers:
        peer.sendall(struct.pack("d", value))
    return value
"""
# In this step the first attempt of a run with a failure waits for it: however late whoever is to strike gets to look,
# the run is neither over by then nor just saved.
STRUCK_BY = 14
TRAIN = f"""\
import pathlib, sys, time
from pytest_clusterqual.probe import Probe
probe = Probe()
import peers
steps, saved = int(sys.argv[1]), pathlib.Path(sys.argv[2]) / "step"
others = peers.connect()
done = 0
with probe.checkpoint("load"):
    if saved.exists():
        done = int(saved.read_text())
probe.resumed(done)
waits = steps > 20 and not done and peers.RANK == peers.WORLD - 1
for step in range(done + 1, steps + 1):
    with probe.data():
        numbers = range(peers.RANK, 240_000, peers.WORLD)
    with probe.step(step, tokens=240_000):
        if waits and step == {STRUCK_BY}:
            time.sleep(60)
        total = peers.summed(others, sum(n * n % 7 for n in numbers))
    probe.loss(total / step)
    if step % 5 == 0:
        with probe.checkpoint():
            if peers.RANK == 0:
                saved.with_suffix(".part").write_text(str(step))
                saved.with_suffix(".part").rename(saved)
            peers.summed(others, 0.0)
"""
FAST = {"kind": "local", "device": "cpu", "oversubscribe": True, "start_timeout": "90 s"}


def own_site(path: Path, script: str, words: list[str], **changes: Any) -> Site:
    site = make_site(path)
    (path / "peers.py").write_text(PEERS)
    (path / "train.py").write_text(script)
    workload = {"command": ["train.py", *words], **changes.pop("workload", {})}
    usual: dict[str, Any] = {"fabric": None, "layouts": None, "launcher": FAST}
    site.configure({**usual, "workload": workload, **changes})
    return site
