"""When each piece of memory was there, and what the most that was held at once is made of."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Life:
    """Memory of one size: `part` is what it belongs to, `born` and `died` count what has happened so far."""

    bytes: int
    part: str
    born: int
    died: int | None = None


class Lives:
    """All memory that is taken and given back, by a key of its own; sizes in bytes."""

    def __init__(self) -> None:
        self._all: list[Life] = []
        self._living: dict[Hashable, Life] = {}
        self._happened = self._held = self._peak = self._peak_at = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._living

    def begin(self) -> None:
        """From here on the peak is looked for."""
        self._all = list(self._living.values())
        self._peak, self._peak_at = self._held, self._happened

    def start(self, key: Hashable, size: int, part: str) -> None:
        """Memory is taken. A peak is only seen by `look`: what takes it may give other memory back at once."""
        self._happened += 1
        self._living[key] = Life(size, part, self._happened)
        self._all.append(self._living[key])
        self._held += size

    def end(self, key: Hashable) -> None:
        """Memory is given back."""
        self._happened += 1
        life = self._living.pop(key)
        life.died = self._happened
        self._held -= life.bytes

    def look(self, besides: int = 0) -> None:
        """Now so much is held, and `besides` for a moment."""
        if self._held + besides > self._peak:
            self._peak, self._peak_at = self._held + besides, self._happened

    def parts(self, known: Mapping[Hashable, str]) -> dict[str, int]:
        """What the peak is made of; the parts add up to it. `known` tells the part of what is still there."""
        for key, part in known.items():
            self._living[key].part = part
        found = {"other": 0}
        for life in self._all:
            if life.born <= self._peak_at and (life.died is None or life.died > self._peak_at):
                found[life.part] = found.get(life.part, 0) + life.bytes
        found["other"] += self._peak - sum(found.values())
        return found
