"""Captured texts for tests of readers: real ones where they are present, and damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"


def capture(name: str) -> str:
    """A real capture, by its path below the folder of cases; the test is skipped without that folder."""
    if not CASES.is_dir():
        pytest.skip("the collection of real captures is not here")
    return (CASES / name).read_text(encoding="utf-8")


@st.composite
def damaged(draw: st.DrawFn, *texts: str) -> str:
    """One of `texts` with a piece cut out and another put in, or any text at all."""
    text = draw(st.sampled_from(texts))
    start, end = (draw(st.integers(min_value=0, max_value=len(text))) for _ in range(2))
    piece = draw(
        st.one_of(st.text(max_size=20), st.sampled_from(text.split() or [""]), st.sampled_from(text.split("\n")))
    )
    return draw(st.sampled_from([text[:start] + piece + text[end:], piece, text[:start] + piece + text[start:]]))
