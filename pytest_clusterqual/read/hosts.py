"""Host lists: ``gpu[001-016,020],login1`` or a file of such, as names in the order written.

The names go to ssh. So only what can be nothing but a host name gets through, and users, ports
and addresses that ssh would read in several ways belong into its own configuration.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from ClusterShell.RangeSet import RangeSet, RangeSetException

from pytest_clusterqual.errors import HostListError
from pytest_clusterqual.read.captured import LIMIT
from pytest_clusterqual.read.messages import shown

MOST_HOSTS = 4096
_PIECE = re.compile(r"\[[^\[\]]*\]|[^\[\],]+|[\[\],]")
_RANGE = re.compile(r"\s*([0-9]{1,18})(?:-([0-9]{1,18})(?:/([0-9]{1,6}))?)?\s*")
_LONGEST = 253
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_LONGEST - 1}}}")
_PART = re.compile(r"[A-Za-z0-9._-]+")
_WANT = "want names of letters, digits, . - and _, such as gpu[001-016,020],login1"


def read_hosts(argument: str, *, where: str = "host list", base: Path | None = None) -> tuple[str, ...]:
    """The hosts of an expression, or of the file that `argument` names, relative to `base`.

    `where` is what messages call an expression. A file holds one expression a line; blank lines
    and what follows ``#`` are skipped.

    Raises:
        HostListError: names the line or `where`, the part that is wrong and what is wanted.
    """
    path = (base or Path()) / argument
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a path, or no path at all
        is_file = False
    if not is_file:
        return expand_hosts(argument, where=where)
    lines = _file(path).split("\n")
    stripped = ((number, line.partition("#")[0].strip()) for number, line in enumerate(lines, start=1))
    return _hosts([(f"{argument}:{number}", line) for number, line in stripped if line], where=argument)


def expand_hosts(text: str, *, where: str) -> tuple[str, ...]:
    """The hosts of one expression, in the order written.

    Raises:
        HostListError: as for `read_hosts`.
    """
    if len(text) > LIMIT:
        raise HostListError(f"{where}: got {len(text)} characters, at most {LIMIT} are read")
    return _hosts([(where, text)], where=where)


def fold_hosts(hosts: Iterable[str]) -> str:
    """Hosts in the short form, for messages: ``gpu[001-003,020],login1``. Only the last number is folded."""
    names = list(hosts)
    if not all(map(_NAME.fullmatch, names)):  # ClusterShell would read operators in them
        return ",".join(names)
    nodes = NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP)
    nodes.fold_axis = (-1,)
    return str(nodes)


def _file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LIMIT + 1)
        if len(content) > LIMIT:
            raise HostListError(f"{path}: more than {LIMIT} bytes, too long for a host list")
        return content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise HostListError(f"{path}: cannot be read as UTF-8 text: {error}") from None


def _hosts(expressions: Iterable[tuple[str, str]], *, where: str) -> tuple[str, ...]:
    found: dict[str, str] = {}  # host -> where it is listed
    for here, expression in expressions:
        for pieces in _terms(expression):
            again = []
            for name in _expand(pieces, here, room=MOST_HOSTS - len(found)):
                if name in found:
                    again.append(name)
                else:
                    found[name] = here
            if again:
                listed = f"{fold_hosts(again)} listed again, first in {found[again[0]]}"
                raise HostListError(f"{here}: {listed}; want each host once")
    if not found:
        raise HostListError(f"{where}: names no host, {_WANT}")
    return tuple(found)


def _terms(expression: str) -> Iterator[list[str]]:
    """The parts between commas outside brackets, each as its texts and its ``[...]``."""
    pieces: list[str] = []
    for piece in _PIECE.findall(expression):
        if piece == ",":
            yield pieces
            pieces = []
        else:
            pieces.append(piece)
    yield pieces


def _expand(pieces: list[str], where: str, *, room: int) -> list[str]:
    """The names of one part. They are counted before any is made."""
    term = "".join(pieces).strip()
    refused = f"{where}: got {shown(term)}, "
    if fault := _fault(term, pieces):
        raise HostListError(refused + fault)
    parts = [piece[1:-1].split(",") if piece.startswith("[") else [] for piece in map(str.strip, pieces)]
    for part in itertools.chain.from_iterable(parts):
        if not _size(part):
            raise HostListError(f"{refused}want rising ranges such as 001-016 or 1-9/2, not {shown(part.strip())}")
    count = math.prod(sum(map(_size, ranges)) for ranges in parts if ranges)
    if count > room:
        total = MOST_HOSTS - room + count
        raise HostListError(f"{refused}which makes {total} hosts, at most {MOST_HOSTS} are allowed")
    try:
        choices = [_numbers(ranges) or [piece.strip()] for ranges, piece in zip(parts, pieces, strict=True)]
    except RangeSetException:
        raise HostListError(f"{refused}want both ends of a range equally long, as in 001-016") from None
    names = ["".join(choice) for choice in itertools.product(*choices)]
    if bad := next((name for name in names if not _NAME.fullmatch(name)), None):
        raise HostListError(f"{where}: got {shown(bad)}, {_WANT}")
    return names


def _numbers(ranges: Iterable[str]) -> list[str]:
    return [number for part in ranges for number in RangeSet(part.strip()).striter()]


def _size(part: str) -> int:
    """How many numbers a range holds, 0 where it is none."""
    match = _RANGE.fullmatch(part)
    if not match:
        return 0
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    return (last - first) // step + 1 if step and last >= first else 0


def _fault(term: str, pieces: list[str]) -> str | None:
    """What is wrong with the form of a part, with a remedy where it is a known one."""
    texts = [piece for piece in pieces if not piece.startswith("[")]
    inside = term.replace("[", "").replace("]", "")
    if not term:
        return "an empty part between commas, want a host"
    if len(term) > _LONGEST and len(pieces) + sum(map(len, texts)) > _LONGEST:
        return f"want names of at most {_LONGEST} characters"
    if term.startswith("-"):
        return "want a host: a name cannot begin with -, which ssh reads as an option"
    if "@" in term:
        return "want the host alone: put the user into your ssh config (Host, User)"
    if inside.count(":") > 1:
        return "want a host name: give the IPv6 address a name in your ssh config (Host, HostName)"
    if ":" in term or "=" in term:
        return (
            "want the host alone: ranks on a node are set by --nproc-per-node, "
            "and a port belongs into your ssh config (Host, Port)"
        )
    if "/" in "".join(texts):
        return f"and there is no such file; {_WANT}"
    if any(piece in ("[", "]") for piece in pieces):
        return "want each [ closed by one ]"
    if re.search(r"\s", re.sub(r"\[.*?\]", "[]", term)):
        return "want commas between hosts, or one host a line in a file"
    return None if all(_PART.fullmatch(text.strip()) for text in texts) else _WANT
