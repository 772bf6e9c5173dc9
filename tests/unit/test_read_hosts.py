"""Host lists: order and padding as written, and nothing that ssh or a shell could read otherwise."""

from __future__ import annotations

import os
import re
import tracemalloc
from pathlib import Path

import pytest
from captures import capture
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_clusterqual.errors import HostListError
from pytest_clusterqual.read.captured import LIMIT
from pytest_clusterqual.read.hosts import MOST_HOSTS, expand_hosts, fold_hosts, read_hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", "node1"),
        ("b,a , c", "b a c"),
        ("gpu[001-003,020]", "gpu001 gpu002 gpu003 gpu020"),
        ("gpu[20,1-2]", "gpu20 gpu1 gpu2"),
        ("gpu[9-11,009-011]", "gpu9 gpu10 gpu11 gpu009 gpu010 gpu011"),
        ("n[1-9/4]", "n1 n5 n9"),
        ("n[1, 3 ]", "n1 n3"),
        ("rack[2,1]n[1-2]-ib", "rack2n1-ib rack2n2-ib rack1n1-ib rack1n2-ib"),
        ("[123-124]", "123 124"),
        ("10.0.0.[1-2],10.1.0.1", "10.0.0.1 10.0.0.2 10.1.0.1"),
        ("GPU-11,gpu_1.example.org", "GPU-11 gpu_1.example.org"),
        ("x" * 253, "x" * 253),
    ],
)
def test_expressions_expand_in_the_order_written(text: str, hosts: str) -> None:
    assert expand_hosts(text, where="--hosts") == tuple(hosts.split())


WANT = "want names of letters, digits, . - and _, such as gpu[001-016,020],login1"
SLOTS = "want the host alone: ranks on a node are set by --nproc-per-node, and a port belongs into your ssh config "
IPV6 = "want a host name: give the IPv6 address a name in your ssh config (Host, HostName)"
RISING = "want rising ranges such as 001-016 or 1-9/2, not "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty part between commas, want a host"),
        ("a,,b", "an empty part between commas, want a host"),
        ("a,", "an empty part between commas, want a host"),
        ("-oProxyCommand=touch", "a name cannot begin with -, which ssh reads as an option"),
        ("-np 32", "a name cannot begin with -"),
        ("root@node1", "want the host alone: put the user into your ssh config (Host, User)"),
        ("@gpus", "put the user into your ssh config"),
        ("spx01:8", 'got "spx01:8", ' + SLOTS),
        ("[10.0.0.1]:2022", SLOTS),
        ("node1 slots=8", 'got "node1 slots=8", ' + SLOTS),
        ("fe80::1", IPV6),
        ("[fe80::1]:22", IPV6),
        ("node1 node2", "want commas between hosts, or one host a line in a file"),
        ("node1 [2]", "want commas between hosts"),
        ("node1\nnode2", "want commas between hosts"),
        ("hosts/a.txt", 'got "hosts/a.txt", and there is no such file; ' + WANT),
        ("n[1-3", "want each [ closed by one ]"),
        ("n1-3]", "want each [ closed by one ]"),
        ("n[[1]]", "want each [ closed by one ]"),
        ("n[]", RISING + '""'),
        ("n[1,]", RISING + '""'),
        ("n[3-1]", RISING + '"3-1"'),
        ("n[1-9/0]", RISING + '"1-9/0"'),
        ("n[a-c]", RISING + '"a-c"'),
        ("n[1-\N{FULLWIDTH DIGIT THREE}]", RISING),
        ("n[01-100]", "want both ends of a range equally long, as in 001-016"),
        ("a;reboot", 'got "a;reboot", ' + WANT),
        ("$(reboot)", WANT),
        ("`reboot`", WANT),
        ("n*", WANT),
        ("a&b", WANT),
        ("a!b", WANT),
        ("%h", WANT),
        (".n", WANT),
        ("_n", WANT),
        ("n\N{LATIN SMALL LETTER E WITH ACUTE}", WANT),
        ("n\0", WANT),
        ("n," * LIMIT, f"got {2 * LIMIT} characters, at most {LIMIT} are read"),
        ("x" * 254, "want names of at most 253 characters"),
        ("x" * 250 + "[1000-1001]", WANT),
        ("n1,n[1-3]", "n1 listed again, first in --hosts; want each host once"),
        ("n[1-4],n[3-9]", "n[3-4] listed again"),
        ("n[0-2000000000]", 'got "n[0-2000000000]", which makes 2000000001 hosts, at most 4096 are allowed'),
        ("n[0-63]x[0-63],y", "got \"y\", which makes 4097 hosts, at most 4096"),
        ("n[0-99][0-99]", "which makes 10000 hosts"),
        ("n[0-999999999999999999][0-999999999999999999]", "which makes 1" + "0" * 36),
        (",".join(["n[1-2000]", "m[1-2000]", "o[1-97]"]), 'got "o[1-97]", which makes 4097 hosts, at most 4096'),
    ],
)  # fmt: skip
def test_what_is_no_host_list_is_refused_with_a_remedy(text: str, message: str) -> None:
    with pytest.raises(HostListError) as error:
        expand_hosts(text, where="--hosts")
    assert str(error.value).startswith("--hosts: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "n[0-99999999]",
        "n[1,0-99999999]",
        "[" * 200_000,
        "[1," * 60_000,
        "a[1]" * 60_000,
        "n[" + "1," * 120_000 + "1]",
        "b" * 200_000 + "[1-4096]",
        "a[1-2]" * 40_000,
    ],
)
def test_a_hostile_list_is_refused_before_it_is_expanded(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(HostListError):
            expand_hosts(text, where="--hosts")
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()


def test_the_largest_list_is_allowed() -> None:
    assert len(expand_hosts(f"n[1-{MOST_HOSTS}]", where="--hosts")) == MOST_HOSTS


def test_a_file_holds_one_expression_a_line(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"\xef\xbb\xbf# the new rack\r\n\r\n  gpu[03-04]  # two\r\nlogin1,gpu01\r\n")
    assert read_hosts("hosts", base=tmp_path) == ("gpu03", "gpu04", "login1", "gpu01")
    assert read_hosts(str(tmp_path / "hosts")) == ("gpu03", "gpu04", "login1", "gpu01")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"n1\nn2 slots=8\n", 'hosts:2: got "n2 slots=8", ' + SLOTS),
        (b"n1\n\n# n1\nn[1-2]\n", "hosts:4: n1 listed again, first in hosts:1; want each host once"),
        (b"n[1-4096]\nm1\n", 'hosts:2: got "m1", which makes 4097 hosts, at most 4096 are allowed'),
        (b"# nothing\n\n", "hosts: names no host, " + WANT),
        (b"n1\n\xff\xfe\n", "cannot be read as UTF-8 text"),
        (b"#" * (LIMIT + 1), f"more than {LIMIT} bytes, too long for a host list"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "hosts").write_bytes(content)
    with pytest.raises(HostListError) as error:
        read_hosts("hosts", base=tmp_path)
    assert message in str(error.value)


def test_what_names_no_file_is_an_expression(tmp_path: Path) -> None:
    (tmp_path / "gpu1").mkdir()
    os.mkfifo(tmp_path / "gpu2")
    assert read_hosts("gpu[1-2]", base=tmp_path) == ("gpu1", "gpu2")
    assert read_hosts("gpu1", base=tmp_path) == ("gpu1",)
    assert read_hosts("gpu2", base=tmp_path) == ("gpu2",)  # and does not wait for a writer
    assert len(read_hosts(",".join(f"host{i}" for i in range(1000)), base=tmp_path)) == 1000  # too long for a path
    for argument in ("", "n\0", "missing/hosts"):
        with pytest.raises(HostListError, match=r"^--hosts: "):
            read_hosts(argument, where="--hosts", base=tmp_path)


@pytest.mark.parametrize(
    ("hosts", "folded"),
    [
        ("gpu01 gpu02 gpu04 gpu05 gpu06 gpu07", "gpu[01-02,04-07]"),
        ("ip-10-0-0-1 ip-10-0-0-2 ip-10-0-1-1", "ip-10-0-0-[1-2],ip-10-0-1-1"),
        ("r1n1 r1n2 r2n1 r2n2", "r1n[1-2],r2n[1-2]"),
        ("n1 n01 n2", "n[1-2,01]"),
        ("login1", "login1"),
        ("", ""),
        ("a&b @c n1", "a&b,@c,n1"),
    ],
)
def test_hosts_fold_for_messages(hosts: str, folded: str) -> None:
    assert fold_hosts(hosts.split()) == folded


names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,8}\Z").filter(str.isascii)


@given(st.lists(names, min_size=1, max_size=30, unique=True))
@settings(deadline=None)
def test_folding_loses_nothing(hosts: list[str]) -> None:
    assert expand_hosts(",".join(hosts), where="--hosts") == tuple(hosts)
    assert set(expand_hosts(fold_hosts(hosts), where="--hosts")) == set(hosts)


@given(st.one_of(st.text(), st.text(alphabet="n01-[],/ \n:@=.", max_size=30)))
@settings(deadline=None, max_examples=500)
def test_any_text_gives_safe_names_or_a_host_list_error(text: str) -> None:
    try:
        hosts = expand_hosts(text, where="--hosts")
    except HostListError:
        return
    assert hosts
    assert len(set(hosts)) == len(hosts)
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", host) for host in hosts)


def test_real_expressions() -> None:
    lines = capture("hostlists/topograph_cluset_forms.txt").splitlines()
    counts = [len(expand_hosts(line, where="line")) for line in lines[:-1]]
    assert counts == [2, 6, 3, 5, 7, 18, 57, 57]
    assert fold_hosts(expand_hosts(lines[6], where="line")) == lines[7]
    with pytest.raises(HostListError, match="which makes 2000000001 hosts"):
        expand_hosts(lines[-1], where="line")


def test_real_host_names_stay_as_they_are() -> None:
    names = capture("hostlists/aws_p5_hostnames.txt").split()
    assert expand_hosts(",".join(names), where="list") == tuple(names)
    assert set(expand_hosts(fold_hosts(names), where="list")) == set(names)
    assert fold_hosts(capture("hostlists/mlperf_env_nodelists.txt").split()) == "gpunod[01-02,04-07]"


def test_real_topology_lines() -> None:
    lines = capture("hostlists/topograph_slurm_topology_conf.txt").splitlines()
    nodes = [line.partition(" Nodes=")[2] for line in lines if " Nodes=" in line]
    assert [len(expand_hosts(node, where="line")) for node in nodes] == [2, 11, 18, 3, 3, 2, 2, 2]
    with pytest.raises(HostListError):
        expand_hosts(lines[0], where="line")


@pytest.mark.parametrize(
    "name", ["mpirun_H_list_nccltests29", "mpirun_H_host_groups_ncclt309", "mpirun_host_port_249"]
)  # fmt: skip
def test_real_mpirun_lists_with_slots_or_ports_are_refused(name: str) -> None:
    for word in capture(f"hostlists/{name}.txt").split():
        if ":" in word.rstrip(":"):
            with pytest.raises(
                HostListError, match=r"want the host alone: ranks on a node|an empty part|closed by one"
            ):
                expand_hosts(word, where="-H")
