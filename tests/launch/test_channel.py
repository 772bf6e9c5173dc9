"""Control messages: only what the run's secret has signed, for this very key, is believed."""

from __future__ import annotations

import socket

import pytest

from pytest_clusterqual import channel as channel_module
from pytest_clusterqual.channel import Channel
from pytest_clusterqual.errors import ChannelError


@pytest.fixture(scope="module")
def store() -> object:
    server = channel_module.listen("127.0.0.1")
    return channel_module.host(server)


def test_a_message_arrives(store: object) -> None:
    one, other = Channel(store, b"secret", "l1"), Channel(store, b"secret", "l1")
    one.put("a", {"x": [1, "ü", None]})
    assert other.has("a")
    assert not other.has("a", "b")
    assert other.get("a") == {"x": [1, "ü", None]}


def test_another_secret_is_refused(store: object) -> None:
    Channel(store, b"other", "l2").put("a", 1)
    with pytest.raises(ChannelError, match="the message 'a' is not signed with this run's secret"):
        Channel(store, b"secret", "l2").get("a")


@pytest.mark.parametrize("raw", [b"", b"x" * 64, b"x" * 200, b"\xff" * 100, b"0" * 64 + b'{"do":"leave"}'])
def test_garbage_is_refused(store: object, raw: bytes) -> None:
    channel = Channel(store, b"secret", "l3")
    channel.store.set("clusterqual/l3/a", raw)
    with pytest.raises(ChannelError):
        channel.get("a")


def test_a_message_cannot_be_moved_to_another_key_or_launch(store: object) -> None:
    channel = Channel(store, b"secret", "l4")
    channel.put("a", 1)
    raw = channel.store.get("clusterqual/l4/a")
    channel.store.set("clusterqual/l4/b", raw)
    channel.store.set("clusterqual/l5/a", raw)
    with pytest.raises(ChannelError):
        channel.get("b")
    with pytest.raises(ChannelError):
        Channel(store, b"secret", "l5").get("a")


def test_a_changed_byte_is_refused(store: object) -> None:
    channel = Channel(store, b"secret", "l6")
    channel.put("a", {"timeout": 10})
    raw = bytes(channel.store.get("clusterqual/l6/a"))
    channel.store.set("clusterqual/l6/a", raw.replace(b"10", b"99"))
    with pytest.raises(ChannelError):
        channel.get("a")


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            ChannelError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use; free the port"
        ):
            channel_module.listen("127.0.0.1", port)


def test_the_store_listens_on_the_given_address_only() -> None:
    server = channel_module.listen("127.0.0.1")
    port = server.getsockname()[1]
    kept = channel_module.host(server)
    with open("/proc/net/tcp") as table:
        listening = [line.split()[1] for line in table if line.split()[3] == "0A"]
    assert f"0100007F:{port:04X}" in listening
    assert f"00000000:{port:04X}" not in listening
    del kept
