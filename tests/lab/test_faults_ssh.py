"""Every fault at its phase, on two hosts through ssh."""

from __future__ import annotations

import pytest
from lab_fault_cases import Fault, marked, run
from lab_hosts import Lab
from lab_site import LabSite

pytestmark = pytest.mark.lab(hosts=2, pin=True)


@pytest.fixture(scope="module")
def lab_site(lab: Lab) -> LabSite:
    return LabSite(lab, "ssh")


@pytest.mark.parametrize("fault", marked("ssh"))
def test_a_fault_ends_well(fault: Fault, lab_site: LabSite) -> None:
    run(lab_site, fault)
