"""A figure of each of thousands of ranks: their names once for all records, and eight bytes a figure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping


class Figures(Mapping[str, float]):
    """Name -> figure. `places` says where in `values` that of a name is, and may be that of others as well."""

    __slots__ = ("_places", "_values")

    def __init__(self, places: Mapping[str, int], values: Iterable[float]) -> None:
        self._places = places
        self._values = array("d", values)

    def __getitem__(self, name: str) -> float:
        return self._values[self._places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return repr(dict(self))
