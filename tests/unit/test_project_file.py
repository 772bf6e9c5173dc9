"""The project file: one good file read field by field, and what is said about every kind of bad one."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from project_files import BAD_EDITS, BAD_FILES, GOOD, SMALL

from pytest_clusterqual.errors import ProjectFileError
from pytest_clusterqual.model.full_run import Checkpoints, Failure
from pytest_clusterqual.model.project import (
    FabricPlan,
    FullRunPlan,
    KnownException,
    LauncherOptions,
    MemoryPlan,
    Project,
    ScalingPlan,
    Target,
    TopologyDemand,
    TopologyPlan,
)
from pytest_clusterqual.model.requirement import QUANTITIES, Requirement
from pytest_clusterqual.model.topology import Links
from pytest_clusterqual.model.workload import Layout, ModelShape, Optimizer, Workload
from pytest_clusterqual.read.demands import FabricDemand, FullRunDemand, MemoryDemand, ScalingDemand
from pytest_clusterqual.read.project import load_project


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.bin").write_bytes(bytes(258))


def problems_of(text: str | bytes, *, nodes: int | None = None, nproc_per_node: int | None = None) -> list[str]:
    path = Path("clusterqual.yaml")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ProjectFileError) as caught:
        load_project(path, nodes=nodes, nproc_per_node=nproc_per_node)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


def load(text: str, **options: int) -> Project:
    path = Path("clusterqual.yaml")
    path.write_text(text)
    return load_project(path, **options)


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, "an edit that does not hit exactly one place tests nothing"
    return GOOD.replace(old, new)


def test_a_good_file_is_read_field_by_field(tmp_path: Path) -> None:
    def demand(line: int, criterion: str, **fields: object) -> Requirement:
        return Requirement(criterion=criterion, source=f"clusterqual.yaml:{line}", **fields)  # type: ignore[arg-type]

    def promise(line: int, key: str, op: str, value: float | str, text: str) -> TopologyDemand:
        return TopologyDemand(key=key, op=op, value=value, text=text, source=f"clusterqual.yaml:{line}")  # type: ignore[arg-type]

    project = load(GOOD, nodes=2)
    assert project == Project(
        path=Path("clusterqual.yaml"),
        name="demo",
        launcher=LauncherOptions(
            kind="local", nproc_per_node=2, device="cpu", oversubscribe=True, start_timeout=90.0, job_timeout=120.0
        ),
        job=Workload(
            model=ModelShape(layers=4, hidden=256, heads=4, kv_heads=2, ffn=1024, vocab=256, experts=0),
            optimizer=Optimizer(name="adamw", lr=3e-4),
            precision="fp32",
            sequence_length=256,
            microbatch=4,
            global_batch=32,
            steps=20,
            seed=1,
            data_path=str(tmp_path / "corpus.bin"),
        ),
        layouts=(
            Layout(name="ddp", fsdp=None, activation_checkpointing="none"),
            Layout(name="fsdp-ac", fsdp="full", activation_checkpointing="full"),
        ),
        target=Target(tokens=2e9, time=144_000.0),
        topology=TopologyPlan(
            source="clusterqual.yaml:46",
            clock_tolerance=0.05,
            demands=(
                promise(47, "gpus_per_node", "==", 8.0, "8"),
                promise(48, "gpu", "in", "H100", "H100"),
                promise(49, "gpu_memory", ">=", 80e9, ">= 80 GB"),
                promise(50, "nics_per_node", "==", 8.0, "8"),
                promise(51, "nic_rate", ">=", 5e10, ">= 400 Gbit/s"),
                promise(52, "mtu", "==", 4092.0, "4092"),
                promise(53, "cores_per_node", "==", 96.0, "96"),
                promise(54, "numa_nodes", "==", 4.0, "4"),
                promise(55, "memory", ">", 2e12, "> 2 TB"),
            ),
        ),
        memory=MemoryPlan(
            steps=4,
            require=(
                demand(20, "memory", quantity="peak", op="<=", value=2.0 * 2**30, unit="B", text="<= 2 GiB"),
                demand(20, "memory", quantity="headroom", op=">=", value=0.1, unit="1", text=">= 10 %", layout="ddp"),
            ),
        ),
        fabric=FabricPlan(
            collectives=("all_reduce", "send_recv"),
            groups=("inter_node", "world"),
            sizes=(4096, 16384, 65536, 262144, 1048576, 4194304, 16777216),
            links=Links(intra_node=None, nic=5e10, nics_per_node=8),
            budget=30.0,
            require=(
                demand(
                    27, "fabric", quantity="busbw", op=">=", value=0.8, unit="B/s", text=">= 80 % of expected",
                    of_expected=True, collective="all_reduce", group="world", from_bytes=1048576.0,
                ),
                demand(
                    28, "fabric", quantity="latency", op="<", value=pytest.approx(1e-4), unit="s", text="< 100 us",
                    collective="send_recv", to_bytes=4096.0,
                ),
            ),
        ),
        scaling=ScalingPlan(
            points=(1, 2, 4),
            repeats=7,
            warmup_steps=2,
            budget=180.0,
            require=(
                demand(36, "scaling", quantity="efficiency", op=">=", value=0.6, unit="1", text=">= 0.6", nodes=2),
                demand(
                    37, "scaling", quantity="step_time", op="<=", value=0.5, unit="s", text="<= 500 ms", layout="ddp"
                ),
            ),
        ),
        full_run=FullRunPlan(
            layouts=("fsdp-ac",), steps=15, checkpoints=(Checkpoints(every=10, mode="sync"),),
            failures=(Failure(kind="kill_rank", step=12, target=1),),
            require=(
                demand(43, "full_run", quantity="goodput", op=">=", value=0.4, unit="1", text=">= 40 %"),
                demand(43, "full_run", quantity="recovery", op="<=", value=60.0, unit="s", text="<= 60 s"),
            ),
        ),
        exceptions=(
            KnownException(
                test="test_fabric*all_to_all*", reason="switch firmware, ticket 4711", until=datetime.date(2027, 3, 1)
            ),
        ),
    )  # fmt: skip


def test_what_is_absent_has_no_plan_and_what_is_empty_has_the_defaults() -> None:
    bare = load(SMALL)
    assert (bare.topology, bare.memory, bare.fabric, bare.scaling, bare.full_run, bare.target) == (None,) * 6
    assert (bare.launcher, bare.exceptions, bare.workload.data_path) == (LauncherOptions(), (), None)
    asked = load(SMALL + "memory: {}\nfabric: {}\nscaling: {}\nfull_run: {steps: 10}\ntopology: {gpu: null}\n")
    assert asked.topology == TopologyPlan(source="clusterqual.yaml:17")
    assert (asked.memory, asked.scaling, asked.full_run) == (MemoryPlan(), ScalingPlan(), FullRunPlan(steps=10))
    assert asked.fabric == FabricPlan(sizes=tuple(4096 * 4**step for step in range(7)))


def test_the_ladder_and_what_each_device_has_in_it() -> None:
    plan = load(SMALL + "memory: {ladder: true, device_memory: 80 GB, budget: 5 min}\n").memory
    assert plan == MemoryPlan(ladder=True, device_memory=80_000_000_000, budget=300.0)


def test_the_option_beats_the_file() -> None:
    assert load(SMALL + "launcher: {nproc_per_node: 3}\n", nproc_per_node=2).launcher.nproc_per_node == 2


def test_null_selects_the_default_where_a_key_may_be_silent() -> None:
    full_run = "full_run: {steps: null, checkpoint: {every: 2}, failure: null}\n"
    project = load(SMALL + "fabric: {links: {nic: null}}\n" + full_run)
    assert project.fabric is not None
    assert project.fabric.links == Links()
    assert project.full_run == FullRunPlan(checkpoints=(Checkpoints(every=2),))


def test_points_beyond_the_nodes_at_hand_are_no_problem_of_the_file() -> None:
    text = SMALL + "scaling: {points: [1, 2, 3]}\n"
    assert load(text, nodes=2).scaling == ScalingPlan(points=(1, 2, 3))
    assert problems_of(text, nodes=3) == [
        "clusterqual.yaml:9: workload.global_batch: got 4, want a multiple of 3 = microbatch 1 x 3 node(s) x 1 rank(s)"
    ]


def test_nothing_is_waited_for_or_repeated_without_an_end() -> None:
    text = "launcher: {start_timeout: 1e300 s}\nscaling: {repeats: 999999999999, launches: 100001, budget: 9000 h}\n"
    line = SMALL.count("\n") + 1
    assert problems_of(SMALL + text) == [
        f'clusterqual.yaml:{line}: launcher.start_timeout: got "1e300 s", want at most 365 d, a time such as 20 s',
        f"clusterqual.yaml:{line + 1}: scaling.repeats: got 999999999999, want at most 100000",
        f"clusterqual.yaml:{line + 1}: scaling.launches: got 100001, want at most 100000",
        f'clusterqual.yaml:{line + 1}: scaling.budget: got "9000 h", want at most 365 d, a time such as 20 s',
    ]
    assert load(SMALL + "scaling: {repeats: 100000, budget: 365 d}\n").scaling == ScalingPlan(
        repeats=100000, budget=365 * 86400.0
    )


def test_copies_of_the_model_share_the_global_batch_not_ranks() -> None:
    split = SMALL.replace("kv_heads: 1", "kv_heads: 2").replace("{name: ddp}", "{name: tp2, tensor: 2}")
    assert load(split, nodes=4, nproc_per_node=2).layouts == (Layout(name="tp2", tensor=2),)
    assert problems_of(split, nodes=8, nproc_per_node=2) == [
        "clusterqual.yaml:9: workload.global_batch: got 4, want a multiple of 8 = microbatch 1 x 8 node(s) x 2 rank(s) "
        "/ 2 a copy"
    ]


def test_a_layout_that_does_not_divide_these_ranks_is_no_problem_of_the_file() -> None:
    split = SMALL.replace("kv_heads: 1", "kv_heads: 2").replace("{name: ddp}", "{name: tp2, tensor: 2}")
    assert load(split, nodes=3).layouts[0].tensor == 2


@pytest.mark.parametrize("group", ["ddp.replicate", "tp2-fsdp.tensor", "tp2-fsdp.shard"])
def test_a_requirement_may_name_a_group_that_a_layout_makes(group: str) -> None:
    assert load(with_two_layouts(group)).requirements("fabric")[0].group == group


@pytest.mark.parametrize(
    ("group", "wish"),
    [("ddp.tensor", ""), ("tp2-fspd.tensor", "did you mean tp2-fsdp.tensor? "), ("tp2-fsdp.context", "")],
)
def test_a_group_that_no_layout_makes_is_named(group: str, wish: str) -> None:
    (problem,) = problems_of(with_two_layouts(group))
    assert f'fabric.require[0].group: got "{group}", ' in problem
    assert wish in problem
    assert "want one of ddp.replicate, tp2-fsdp.tensor, tp2-fsdp.shard, tp2-fsdp.replicate" in problem


def with_two_layouts(group: str) -> str:
    layouts = "{name: ddp}, {name: tp2-fsdp, tensor: 2, fsdp: full}"
    text = SMALL.replace("kv_heads: 1", "kv_heads: 2").replace("{name: ddp}", layouts)
    return text + f'fabric: {{require: [{{group: {group}, busbw: "> 1 GB/s"}}]}}\n'


def test_an_expired_exception_is_no_problem_of_the_file() -> None:
    assert load(GOOD.replace("2027-03-01", "2001-01-01")).exceptions[0].until == datetime.date(2001, 1, 1)


def test_experts_lie_on_ranks_that_divide_them(tmp_path: Path) -> None:
    text = changed("experts: 0", "experts: 4, top_k: 2").replace("- {name: ddp}", "- {name: ddp, expert: 2}")
    project = load(text, nodes=2)
    assert (project.workload.model.experts, project.workload.model.top_k, project.layouts[0].expert) == (4, 2, 2)
    assert problems_of(text.replace("experts: 4", "experts: 3"), nodes=2) == [
        "clusterqual.yaml:15: layouts[0].expert: got 2, want a divisor of workload.model.experts 3"
    ]


@pytest.mark.parametrize(("old", "new", "expected"), BAD_EDITS, ids=[str(number) for number in range(len(BAD_EDITS))])
def test_one_wrong_place_is_named_with_line_key_and_wish(old: str, new: str, expected: str | list[str]) -> None:
    lines = [expected] if isinstance(expected, str) else expected
    assert problems_of(changed(old, new), nodes=2) == [f"clusterqual.yaml:{line}" for line in lines]


@pytest.mark.parametrize(("text", "expected"), BAD_FILES, ids=[str(number) for number in range(len(BAD_FILES))])
def test_a_file_that_is_wrong_as_a_whole(text: str | bytes, expected: str) -> None:
    assert problems_of(text) == [f"clusterqual.yaml{expected}"]


def test_all_problems_come_in_one_message_in_the_order_of_the_file() -> None:
    text = GOOD
    for old, new in (
        ("nproc_per_node: 2", "nproc_per_node: none"), ("kv_heads: 2", "kv_heads: 3"), ("lr: 3e-4", "lr: -1"),
        ("collective: send_recv", "collective: barrier"), ("nodes: 2", "nodes: 3"), ("time: 40 h", "hours: 40"),
        ("goodput:", "badput:"), ("version: 1", "version: 1\nversion: 2"),
    ):  # fmt: skip
        assert text.count(old) == 1
        text = text.replace(old, new)
    found = problems_of(text)
    assert [line.split(": ")[:2] for line in found] == [
        ["clusterqual.yaml:2", "version"],
        ["clusterqual.yaml:4", "launcher.nproc_per_node"],
        ["clusterqual.yaml:6", "workload.model.kv_heads"],
        ["clusterqual.yaml:7", "workload.optimizer.lr"],
        ["clusterqual.yaml:18", "target.time"],
        ["clusterqual.yaml:18", "target.hours"],
        ["clusterqual.yaml:29", "fabric.require[1].collective"],
        ["clusterqual.yaml:37", "scaling.require[0].nodes"],
        ["clusterqual.yaml:44", "full_run.require[0].badput"],
    ]


def test_a_file_that_cannot_be_opened_says_how_to_point_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("folder").mkdir()
    for path, what in (("none.yaml", "there is no such file"), ("folder", "this is a folder, not a file")):
        with pytest.raises(ProjectFileError) as caught:
            load_project(Path(path))
        assert str(caught.value) == f"{path}: {what}; point to the project file with --qual-config FILE"

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ProjectFileError) as caught:
        load_project(Path("corpus.bin"))
    assert str(caught.value) == (
        "corpus.bin: cannot be read: Permission denied; point to the project file with --qual-config FILE"
    )


def test_training_data_that_cannot_be_opened_is_a_problem_of_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def refuse(path: Path, mode: str) -> object:
        if path.name == "corpus.bin":
            raise PermissionError(13, "Permission denied")
        return opened(path, mode)

    Path("clusterqual.yaml").write_text(GOOD)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ProjectFileError) as caught:
        load_project(Path("clusterqual.yaml"))
    assert str(caught.value) == (
        'clusterqual.yaml:13: workload.data.path: got "corpus.bin", which cannot be read: Permission denied'
    )


def test_paths_are_shown_from_here_and_data_are_found_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    inside = tmp_path / "sub" / "q.yaml"
    inside.write_text(GOOD.replace("corpus.bin", "../corpus.bin"))
    project = load_project(inside)
    assert project.workload.data_path == str(tmp_path / "corpus.bin")
    assert project.requirements("memory")[0].source == "sub/q.yaml:20"


def test_a_bomb_of_aliases_is_refused_before_it_is_expanded() -> None:
    bomb = "a: &a [x, x]\n" + "".join(f"{n}: &{n} [*{p}, *{p}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True))
    found = problems_of(bomb)
    assert len(found) == 9 + 8  # an anchor a line; its two aliases read the same
    assert found[0] == "clusterqual.yaml:1: got the anchor &a, want none: anchors are not read here"


def test_a_flood_of_problems_is_cut() -> None:
    found = problems_of("".join(f"key{number}: 1\n" for number in range(121)))
    assert len(found) == 101
    assert found[-1] == "clusterqual.yaml: and 25 more problems"  # 121 unknown keys and 4 missing ones
    (long,) = problems_of(f"project: !{'x' * 5000} demo")
    assert len(long) == 600
    assert long.startswith("clusterqual.yaml:1: got the tag !xxx")
    assert long.endswith("xxx...")


def test_every_quantity_of_the_words_can_be_demanded_and_no_other() -> None:
    demands = {kind.criterion: kind for kind in (MemoryDemand, FabricDemand, ScalingDemand, FullRunDemand)}
    selectors = {"layout", "collective", "group", "from_", "to", "nodes"}
    assert {name: set(kind.model_fields) - selectors for name, kind in demands.items()} == {
        name: set(quantities) for name, quantities in QUANTITIES.items()
    }


def test_reading_the_module_imports_neither_torch_nor_numpy() -> None:
    code = "import sys, pytest_clusterqual.read.project; print(sorted({'torch', 'numpy', 'pint'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


WORDS = sorted({word for word in yaml.safe_dump(yaml.safe_load(GOOD)).replace(":", " ").split() if len(word) > 2})
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(WORDS), st.text(max_size=8),
    st.sampled_from([">= 1 GB/s of expected", "<= 1e400 s", ">= nan %", "-5 GiB", "1e308 TiB", "\ud800", "\0"]),
)  # fmt: skip
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)
PIECES = st.one_of(
    st.sampled_from(["\n", "  ", ": ", "- ", "{", "}", "[", "]", "&a ", "*a", "!!int ", "? ", "'", '"', "|", "#", "%"]),
    st.sampled_from(WORDS), st.text(max_size=4),
)  # fmt: skip


@st.composite
def spoiled_files(draw: st.DrawFn) -> str:
    """The good file with one stretch of it replaced by something else."""
    start = draw(st.integers(0, len(GOOD)))
    end = start + draw(st.integers(0, 30))
    return GOOD[:start] + "".join(draw(st.lists(PIECES, max_size=4))) + GOOD[end:]


@st.composite
def spoiled_trees(draw: st.DrawFn) -> str:
    """The good file with the value of one key replaced by a tree."""
    tree = yaml.safe_load(GOOD)
    holder, key = tree, draw(st.sampled_from(sorted(tree)))
    while isinstance(holder[key], (dict, list)) and holder[key] and draw(st.booleans()):
        holder = holder[key]
        key = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else list(range(len(holder)))))
    holder[key] = draw(TREES)
    return yaml.safe_dump(tree, allow_unicode=draw(st.booleans()), default_flow_style=draw(st.booleans()))


ANY_TEXT = st.one_of(
    st.text(), st.lists(PIECES).map("".join), spoiled_files(), spoiled_trees(), TREES.map(yaml.safe_dump)
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(text="!!float 3", nodes=1)
@example(text="a: " + "[" * 5000, nodes=None)
@example(text="? " * 5000, nodes=None)
@example(text=SMALL.replace("seed: 0", 'seed: 0\n  data: {path: "\\uD800"}'), nodes=None)
@example(text=SMALL.replace("demo", '"\\uD800"'), nodes=None)
@example(text=SMALL + "fabric: {sizes: {from: 1 B, to: 1e308 B}}", nodes=None)
@given(text=ANY_TEXT, nodes=st.sampled_from([None, 1, 2, 3]))
def test_no_text_raises_anything_but_a_project_file_error(text: str, nodes: int | None) -> None:
    path = Path("any.yaml")
    path.write_bytes(text.encode(errors="surrogatepass"))
    problems: tuple[str, ...] = ()
    try:
        project = load_project(path, nodes=nodes)
        assert project.layouts
        assert project.name.isprintable()
    except ProjectFileError as error:
        problems = error.problems
        str(error).encode()  # can be printed
    assert all(problem.startswith("any.yaml:") and "\n" not in problem for problem in problems)
