"""Variables that stand for options are recorded with the run, and shown as what repeats it; nothing secret is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_clusterqual import plugin
from pytest_clusterqual.model.variables import environment_variables, given_options
from pytest_clusterqual.report.html import Told, html_report
from pytest_clusterqual.report.text import repeat_with


class Options:
    """Stands for pytest's parser: the options of the plugin, with what they are if they are left out."""

    def __init__(self) -> None:
        self.left_out: dict[str, object] = {}
        plugin.pytest_addoption(cast(Any, self))

    def getgroup(self, *_: str) -> Options:
        return self

    def addoption(self, name: str, action: str = "store", default: object = None, **_: object) -> None:
        self.left_out[name] = False if action == "store_true" else default

    @property
    def config(self) -> pytest.Config:
        return cast(Any, SimpleNamespace(getoption=self.left_out.__getitem__))


def test_each_variable_that_stands_for_an_option_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    options, read = Options(), []
    for option in options.left_out:
        variable = "CLUSTERQUAL_" + option.lstrip("-").removeprefix("qual-").upper().replace("-", "_")
        monkeypatch.setenv(variable, "given")
        if plugin.option(options.config, option) == "given":
            read.append(variable)
        monkeypatch.delenv(variable)
    assert "CLUSTERQUAL_NODES" in read and "CLUSTERQUAL_KEEP_GOING" not in read
    assert set(given_options(dict.fromkeys(read, "x"))) == set(read)
    everything = dict.fromkeys([*read, *(f"CLUSTERQUAL_{name}" for name in ("SECRET", "STORE", "PROBE", "NODE"))], "x")
    assert list(environment_variables(everything)) == sorted(read)


def test_what_could_be_a_secret_is_not_recorded() -> None:
    given = {
        "CLUSTERQUAL_NODES": "",
        "CLUSTERQUAL_CONFIG": "https://me:word@host/c.yaml",
        "NCCL_TOKEN": "x",
        "HOME": "/",
    }
    assert environment_variables(given) == {}


@pytest.mark.parametrize(
    ("variables", "command"),
    [
        ({}, "pytest q"),
        ({"CLUSTERQUAL_NODES": "4", "NCCL_ALGO": "Ring"}, "CLUSTERQUAL_NODES=4 pytest q"),
        (
            {"CLUSTERQUAL_HOSTS": "gpu[01-04]", "CLUSTERQUAL_NODES": "4"},
            "CLUSTERQUAL_NODES=4 CLUSTERQUAL_HOSTS='gpu[01-04]' pytest q",
        ),
    ],
)
def test_the_command_that_repeats_a_run_has_the_options_that_variables_gave(
    variables: dict[str, str], command: str
) -> None:
    environment = {"argv": "pytest q", "variables": variables}
    assert repeat_with(environment) == command
    page = html_report(Told(run="r", simulated=True, environment=environment, records=[]))
    assert f"<code>{command.replace(chr(39), '&#39;')}</code>" in page


def test_a_run_without_a_command_has_none_that_repeats_it() -> None:
    assert repeat_with({"variables": {"CLUSTERQUAL_NODES": "4"}}) == repeat_with({}) == ""
