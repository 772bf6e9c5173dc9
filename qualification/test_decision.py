"""Decision: does this exact job need several nodes, and is the answer the one that the file expects?"""

import pytest


@pytest.mark.criterion("decision")
def test_decision(decision, qualify):
    qualify(decision)
