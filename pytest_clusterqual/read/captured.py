"""Text that another program printed, before anything is read from it: its size, its XML, its CPU lists."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.read.messages import shown

LIMIT = 256 * 1024
# `nvidia-smi -q` takes some 20 KiB a GPU and more with processes and MIG devices.
XML_LIMIT = 2 * 1024 * 1024
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;?]*[@-~]")
_MOST_CPUS = 65536


def plain(text: str, what: str, *, limit: int = LIMIT) -> str:
    """`text` without terminal codes and carriage returns.

    Raises:
        ReadError: it has more than `limit` characters.
    """
    if len(text) > limit:
        raise ReadError(f"{what}: got {len(text)} characters, at most {limit} are read")
    return _TERMINAL_CODE.sub("", text).replace("\r", "")


def beginning(text: str) -> str:
    """The first line that says something, for messages: it is often the tool's own reason."""
    return shown(next((line.strip() for line in text.splitlines() if line.strip()), ""))


def xml_root(text: str, what: str, tag: str) -> ElementTree.Element:
    """The root of an XML text, which must be a `tag`. What stands before the first ``<`` is skipped.

    Raises:
        ReadError: too long, not XML, another root, or an entity is declared (a few lines of
            which can expand to gigabytes).
    """
    text = plain(text, what, limit=XML_LIMIT)
    if "<!ENTITY" in text:
        raise ReadError(f"{what}: got an entity declaration, want plain XML: entities are not read here")
    try:
        root = ElementTree.fromstring(text[max(text.find("<"), 0) :])
    except (ElementTree.ParseError, ValueError) as error:
        raise ReadError(f"{what}: want XML with the root <{tag}>, got {beginning(text)} ({str(error)[:80]})") from None
    if root.tag != tag:
        raise ReadError(f"{what}: got the root {shown(root.tag)}, want {shown(tag)}")
    return root


def whole_number(text: str | None) -> int | None:
    """A natural number, None for anything else."""
    return int(text) if text and re.fullmatch(r"\s*[0-9]{1,15}\s*", text) else None


def cpu_list(text: str) -> tuple[int, ...]:
    """The CPUs of a list such as ``0-3,8``; none where it is not such a list."""
    cpus: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*", part)
        if not ends:
            return ()
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first or len(cpus) + last - first >= _MOST_CPUS:
            return ()
        cpus += range(first, last + 1)
    return tuple(cpus)
