"""What of a pytest.Config says what a run is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_clusterqual.folder.runs import RunFolder
from pytest_clusterqual.run.asked import open_folder, read_asked

LAUNCHER = "launcher: {kind: local, device: cpu, oversubscribe: true}\n"


class Options:
    """Options of a run whose tests and whose working folder are `path`."""

    def __init__(self, path: Path, **options: Any) -> None:
        self._options = {"--" + name.replace("_", "-"): value for name, value in options.items()}
        self._cleanups: list[Callable[[], None]] = []
        self.args = [str(path)]
        self.rootpath = path
        self.invocation_params = SimpleNamespace(dir=path, args=())

    def getoption(self, name: str) -> Any:
        return self._options.get(name)

    def add_cleanup(self, function: Callable[[], None]) -> None:
        self._cleanups.append(function)

    def end(self) -> None:
        """What pytest does last of all."""
        while self._cleanups:
            self._cleanups.pop()()


def opened(path: Path, **options: Any) -> tuple[RunFolder, str]:
    """The run folder of such a run before its first test, and its baseline; then that run is over."""
    config: Any = Options(path, nodes=2, **options)
    try:
        asked = read_asked(config)
        return open_folder(config, asked, simulated=True), str(asked.project.baseline)
    finally:
        config.end()
