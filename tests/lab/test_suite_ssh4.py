"""The suite on four hosts through ssh."""

from __future__ import annotations

import pytest
from lab_hosts import Lab
from lab_site import nothing_left
from lab_suite import run_suite

pytestmark = [pytest.mark.lab(hosts=4, pin=True), pytest.mark.full]


def test_the_whole_suite_passes_on_four_hosts(lab: Lab) -> None:
    with nothing_left(lab, seconds=60):
        suite = run_suite(lab, "four", "--qual-hosts", lab.hosts_arg)
    assert suite.code == 0, suite.out[-6000:]
    assert set(suite.verdicts) == {"nodes", "memory", "fabric", "scaling", "full_run", "own"}
    assert {c["ranks"] for r in suite.records if (c := r["conditions"]) and r["criterion"] == "memory"} == {4}
