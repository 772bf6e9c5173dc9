"""Errors that are meant to be read by the person who runs the qualification.

Every message names what was wrong, where, and what to do about it. Anything that is not a
`ClusterQualError` is a defect of this package.
"""

from __future__ import annotations

from collections.abc import Sequence


class ClusterQualError(Exception):
    """Base of every error this package raises on purpose.

    `culprits` names the nodes (``node1``), ranks (``rank 1 on node1``) or pairs of nodes (``node1 - node2``,
    one way ``node1 -> node2``) that the evidence points at.
    """

    def __init__(self, message: str, *, culprits: Sequence[str] = ()) -> None:
        self.culprits = tuple(culprits)
        super().__init__(message)


class ProjectFileError(ClusterQualError):
    """The project file is missing, malformed or asks for something impossible.

    `problems` holds one line each, in the form ``file:line: key: got ..., want ...``.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class HostListError(ClusterQualError):
    """A host list is malformed, names a host twice, or holds what must not reach ssh."""


class ReadError(ClusterQualError):
    """A captured text is not what it should be."""


class NoStepsError(ReadError):
    """A log that can be read, and of whose lines none tells of a step."""


class LaunchError(ClusterQualError):
    """The ranks could not be started, or the world that formed is not the one asked for."""


class ChannelError(ClusterQualError):
    """A control message was missing, malformed or not signed with the run's secret."""


class JobError(ClusterQualError):
    """A job did not give a usable result on every rank.

    `out_of_memory` says which ranks ran out of memory, and how; empty if anything else went wrong.
    """

    def __init__(self, message: str, *, culprits: Sequence[str] = (), out_of_memory: str = "") -> None:
        self.out_of_memory = out_of_memory
        super().__init__(message, culprits=culprits)


class MeasurementError(ClusterQualError):
    """What the ranks returned is not a measurement: missing, not finite, of the wrong size."""


class RunFolderError(ClusterQualError):
    """The run folder cannot be written, or holds records of another schema."""


# Whatever code that goes wrong on data can raise, but not all of Exception: what ends a run on a signal is one, too.
UNFORESEEN = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
