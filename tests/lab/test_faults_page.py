"""docs/faults.md says what the cases say; it needs no lab."""

from __future__ import annotations

from lab_fault_cases import PAGE, page


def test_the_page_is_that_of_the_cases() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "the cases changed: run them all with `make lab`"
