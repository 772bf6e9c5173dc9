"""A site that `clusterqual init` wrote: it is collected as it is, and runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sites import Site

from pytest_clusterqual.cli import main


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name in ("HOSTS", "LAUNCHER", "NODES"):
        monkeypatch.delenv(f"CLUSTERQUAL_{name}", raising=False)
    assert main(["init", str(tmp_path)]) == 0
    file = tmp_path / "qualification" / "clusterqual.yaml"
    # Ranks on the CPU, and as many as are asked for: the test is of the file, not of this machine.
    file.write_text(file.read_text().replace("device: auto", "device: cpu\n  oversubscribe: true"))
    return Site(tmp_path)


@pytest.mark.parametrize("nodes", [1, 2])
def test_it_is_collected(site: Site, nodes: int) -> None:
    run = site.run("qualification", "--collect-only", "-q", nodes=nodes)
    assert run.code == 0, run.out
    for case in (f"test_nodes[{nodes}nodes]", "test_fabric[all_reduce-world]", "test_scaling[fsdp-2nodes]",
                 f"test_full_run[ddp-{nodes}node{'s' if nodes > 1 else ''}]", "test_barrier"):  # fmt: skip
        assert f"::{case}\n" in run.out
    assert not run.folder.exists()


@pytest.mark.slow
def test_it_measures_and_passes_once_something_is_demanded(site: Site) -> None:
    run = site.run("qualification", "-k", "test_memory and ddp or test_nodes")
    assert set(run.verdicts("nodes")) == {"PASS"}, run.out
    assert set(run.verdicts("memory")) == {"MEASURED"}
    assert "memory: no verdict was reached" in run.out and run.code == 1

    file = site.path / "qualification" / "clusterqual.yaml"
    text = file.read_text()
    demanded = re.sub(r"  # require:\n  #   - \{peak: .*\n  #   (- \{headroom: ).*",
                      '  require:\n    - {peak: "<= 1 GiB"}\n    \\1">= 0.001 %"}', text)  # fmt: skip
    assert demanded != text
    file.write_text(demanded)
    run.folder.rename(site.path / "before")
    again = site.run("qualification", "-k", "test_memory and ddp", "--qual-replay=before", nodes=None)
    assert again.code == 0, again.out
    assert again.verdicts("memory").count("PASS") == 2
