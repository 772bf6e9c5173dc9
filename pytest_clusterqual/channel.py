"""The signed messages that session and ranks speak, carried by a torch TCPStore.

The session hosts the store; torchrun's rendezvous uses the same one, so a launch needs one open
port and the channel outlives every agent. A message is JSON with an HMAC-SHA256 over the key it
stands under and its text: a message cannot be forged without the run's secret, nor be moved to
another key. Nothing received is unpickled or evaluated. The store itself has no authentication:
it belongs on the cluster's own interface, and it listens on the given address only.

Keys of one launch, all under its name (``g`` is a generation of forked workers):

===================  ===========================================================
present/NODE/LOCAL   a supervisor has started under torchrun
control/N            N-th order from the session to all supervisors
G/hello/RANK         a worker is in its process group and waits for jobs
G/job/K              K-th job
G/result/K/RANK      its result, or its error
G/ready/K            exists when every rank has answered job K
G/trouble            exists when a rank failed or died
G/exit/RANK          how a worker ended, with its stacks if it had to be killed
G/reach/door/NODE    where a node listens for the others, when the session asks who reaches whom
G/reach/doors        where all of them listen
G/reach/lost/NODE    the nodes it could not connect to
G/reach/over         exists when nobody needs to be let in any more
===================  ===========================================================
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import socket
from typing import TYPE_CHECKING, Any

from pytest_clusterqual.errors import ChannelError

if TYPE_CHECKING:
    from torch.distributed import TCPStore

# A worker waits for its next job as long as the session lives: the session's own deadlines and
# the guard's lifeline end it, never this figure.
_FOREVER = datetime.timedelta(days=30)


class Channel:
    """One end of the conversation of one launch."""

    def __init__(self, store: TCPStore, secret: bytes, launch: str) -> None:
        self.store = store
        self._secret = secret
        self._launch = launch

    def put(self, key: str, body: Any) -> None:
        """Sign `body` and set it under `key`.

        Raises:
            TypeError: `body` holds something that has no JSON form.
        """
        text = json.dumps(body, separators=(",", ":"))
        self.store.set(self._name(key), f"{self._sign(key, text)}{text}")

    def get(self, key: str) -> Any:
        """Wait for the message under `key` and return its body.

        Raises:
            ChannelError: the message is not signed with this run's secret.
        """
        raw = self.store.get(self._name(key))
        mark, text = raw[:64], raw[64:]
        if not hmac.compare_digest(mark, self._sign(key, text.decode(errors="replace")).encode()):
            raise ChannelError(f"the message {key!r} is not signed with this run's secret; it was ignored")
        return json.loads(text)

    def drop(self, *keys: str) -> None:
        """Forget keys that nobody will read again; those that are not there do not matter."""
        for key in keys:
            self.store.delete_key(self._name(key))

    def has(self, *keys: str) -> bool:
        """True if all keys are set; never waits."""
        return bool(self.store.check([self._name(key) for key in keys]))

    def flag(self, key: str) -> None:
        """Set a key that only says that something is there to look at; it carries no message."""
        self.store.set(self._name(key), "1")

    def count(self, key: str) -> int:
        """Add one to a counter and return it."""
        return int(self.store.add(self._name(key), 1))

    def _name(self, key: str) -> str:
        return f"clusterqual/{self._launch}/{key}"

    def _sign(self, key: str, text: str) -> str:
        return hmac.new(self._secret, f"{self._name(key)}\0{text}".encode(), hashlib.sha256).hexdigest()


def listen(address: str, port: int = 0) -> socket.socket:
    """Open the listening socket of a store on `address`; port 0 takes a free one.

    It is opened before the store exists, so that agents can be started with its port while the
    session is still importing torch.

    Raises:
        ChannelError: the address or the port cannot be had.
    """
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((address, port))
        server.listen(4096)
    except OSError as error:
        server.close()
        raise ChannelError(
            f"cannot listen on {address}:{port}: {error.strerror}; free the port or choose another address"
        ) from None
    return server


def host(server: socket.socket) -> TCPStore:
    """Serve a store on the listening socket; the store owns the socket from here on."""
    from torch.distributed import TCPStore

    address, port = server.getsockname()
    return TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach(), timeout=_FOREVER
    )


def join(address: str, port: int, *, timeout: float = 60.0) -> TCPStore:
    """Connect to the session's store; `timeout` (seconds) is for the connection only."""
    from torch.distributed import TCPStore

    store = TCPStore(address, port, is_master=False, timeout=datetime.timedelta(seconds=timeout))
    store.set_timeout(_FOREVER)
    return store
