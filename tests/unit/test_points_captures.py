"""Published scaling tables and reports of slow scaling, where they are present, and what is right to say of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from captures import CASES, capture
from points_made import between, judged, lines_of, points, values

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.judge.scaling.points import judge_points
from pytest_clusterqual.model.points import JudgedPoints
from pytest_clusterqual.model.record import Verdict
from pytest_clusterqual.read.points import read_points

pytestmark = pytest.mark.skipif(not (CASES / "scaling").is_dir(), reason="the collection of real captures is not here")


def rows(name: str, title: str = "") -> list[dict[str, object]]:
    """The rows of the first table of a page below `title`, without separators of thousands."""
    lines = capture(name)[capture(name).index(title) :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    cells = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        cells.append([cell.strip().replace(",", "") for cell in line.strip("|").split("|")])
    return [dict(zip(cells[0], row, strict=False)) for row in cells[2:] if any(row)]


def kinds(result: JudgedPoints) -> dict[tuple[str, str], str]:
    return {
        (result.points[each.baseline].label, result.points[each.point].label): each.kind
        for each in result.comparisons
    }  # fmt: skip


def claimed(result: JudgedPoints) -> set[str]:
    """The quantities that are said of two points without reserve."""
    return {
        judgement.quantity for each in result.comparisons for judgement in each.judgements
        if judgement.verdict is not Verdict.UNDECIDED
    }  # fmt: skip


def mlperf(name: str, *same: tuple[str, str]) -> JudgedPoints:
    return judge_points(read_points(CASES / "scaling" / name, same))


LORA = ("mlperf41_llama2_70b_lora.csv", ("model", "llama2-70b-lora"), ("software", "mlperf 4.1"))


@pytest.mark.parametrize(
    ("system", "point", "efficiency"),
    [("Dell", "2 x 8", 0.839), ("Dell", "4 x 8", 0.858), ("Dell", "8 x 8", 0.834), ("NVIDIA eos", "8 x 8", 0.847)],
)
def test_mlperf_of_one_global_batch_is_strong_scaling_by_throughput(system: str, point: str, efficiency: float) -> None:
    found = between(mlperf(*LORA), "1 x 8", point, system=system)
    assert found.kind == "strong scaling"
    assert values(found)["efficiency"] == pytest.approx(efficiency, abs=5e-4)
    assert [note.kind for note in found.notes] == ["time to train"]
    assert found.judgements[1].interval is None  # four runs of each


def test_mlperf_with_another_global_batch_is_none() -> None:
    result = mlperf(*LORA)
    nvidia = between(result, "1 x 8", "128 x 8", system="NVIDIA eos")
    assert nvidia.kind == "another regime"
    assert "global batch: 8 against 128" in nvidia.differences[0]
    oracle = [each for each in result.comparisons if result.points[each.point].identity["system"] == "Oracle"]
    assert [each.kind for each in oracle] == ["weak scaling", "weak scaling"]
    assert all("efficiency" not in values(each) for each in oracle)


def test_mlperf_alone_does_not_tell_model_and_versions() -> None:
    result = mlperf(LORA[0])
    found = between(result, "1 x 8", "8 x 8", system="Dell")
    assert (found.kind, found.would_be, found.missing) == ("undecided", "strong scaling", ("model", "versions"))
    assert "efficiency" not in claimed(result)


def test_by_time_to_train_two_nodes_look_worse_than_they_are() -> None:
    ratios = values(between(mlperf(*LORA), "1 x 8", "2 x 8", system="Dell"))
    assert ratios["speedup"] == pytest.approx(1.679, abs=1e-3)
    assert ratios["speedup_by_time_to_train"] == pytest.approx(1.429, abs=1e-3)


def test_stable_diffusion_changes_its_batch_or_its_software(tmp_path: Path) -> None:
    result = mlperf("mlperf41_stable_diffusion.csv", ("model", "stable diffusion"), ("software", "not told"))
    assert kinds(result) == {
        ("1 x 8", "8 x 8"): "another regime", ("1 x 8", "64 x 8"): "another regime",
        ("8 x 8", "64 x 8"): "another regime", ("64 x 8", "128 x 8"): "strong scaling",
        ("1 x 8", "128 x 8"): "another regime",
    }  # fmt: skip
    assert claimed(result) == {"speedup_by_time_to_train"}  # there is no throughput
    lines = capture("scaling/mlperf41_stable_diffusion.csv").splitlines()
    told = [f"{line},{'ngc24.04' if line.startswith('eos n64') else 'ngc24.09'}" for line in lines[1:]]
    result = judged(tmp_path, f"{lines[0]},software", *told, same=[("model", "stable diffusion")])
    found = between(result, "64 x 8", "128 x 8")
    assert (found.kind, found.differences) == ("another regime", ("software: ngc24.04 against ngc24.09",))
    assert set(kinds(result).values()) == {"another regime"}


GPT = (
    ("hardware", "H100"),
    ("software", "Megatron-LM d98e8a64"),
    ("devices_per_node", "8"),
    ("sequence_length", "4096"),
)


def test_megatron_strong_scaling_by_its_mfu(tmp_path: Path) -> None:
    text = capture("scaling/megatron_readme_scaling.md").partition("## Strong Scaling Results")[2].replace(",", "")
    least, most = re.findall(r"(\d+) (?:H100 )?GPUs", text)
    (batch,) = re.findall(r"batch size of (\d+)", text)
    shares = re.findall(r"MFU from (\d+%) to (\d+%)", text)[0]
    lines = [f"{ranks},{batch},{share},175B" for ranks, share in ((least, shares[0]), (most, shares[1]))]
    found = between(judged(tmp_path, "ranks,global_batch,mfu,model", *lines, same=GPT), "12 x 8", "576 x 8")
    assert found.kind == "strong scaling"
    assert values(found) == pytest.approx({"speedup": 42.9, "efficiency": 0.894}, abs=0.05)
    assert values(found)["efficiency"] == pytest.approx(0.894, abs=5e-4)


def test_megatron_weak_scaling_grows_the_model(tmp_path: Path) -> None:
    lines = ["96,256,41%,2B", "6144,1536,47%,462B"]
    result = judged(tmp_path, "ranks,global_batch,mfu,model", *lines, same=GPT)
    found = between(result, "12 x 8", "768 x 8")
    assert (found.kind, found.differences[0]) == ("another regime", "model: 2B against 462B")
    assert claimed(result) == set()  # shares of a peak are no work of different models


def test_trainy_is_weak_scaling_from_four_nodes(tmp_path: Path) -> None:
    told = rows("scaling/torchtitan_llama3_8b_h200_trainy.md")
    lines = lines_of({**row, "global_batch": 2 * 8 * int(str(row["NUM_NODES"]))} for row in told)
    same = [("devices_per_node", "8"), ("hardware", "H200"), ("model", "Llama 3.1 8B"), ("torchtitan", "e7c0cae"),
            ("torch", "2.8.0a0")]  # fmt: skip
    found = between(judged(tmp_path, *lines, same=same), "4 x 8", "8 x 8")
    assert found.kind == "weak scaling"
    assert values(found) == {"normalized_throughput": pytest.approx(0.983, abs=5e-4)}


def test_torchtitan_is_weak_scaling_of_each_technique(tmp_path: Path) -> None:
    page = "scaling/torchtitan_llama3_h100_202412.md"
    told = [
        {**row, "ranks": ranks, "global_batch": 2 * ranks}
        for title, ranks in (("**Table 1**", 8), ("**Table 3**", 128)) for row in rows(page, title)
    ]  # fmt: skip
    same = [("devices_per_node", "8"), ("hardware", "H100 96GB"), ("model", "8B"), ("torch", "1963fc8")]
    result = judged(tmp_path, *lines_of(told), same=same)
    assert {each.kind for each in result.comparisons} == {"weak scaling"}
    assert [values(each)["normalized_throughput"] for each in result.comparisons] == pytest.approx(
        [0.973, 0.977, 0.982], abs=5e-4
    )
    assert claimed(result) == {"normalized_throughput"}


@pytest.mark.parametrize(
    ("title", "ranks", "kind"),
    [
        ("**Table 4**", 256, "same devices"),
        ("**Table 5**", 512, "same devices"),
        ("**Table 6**", 512, "another regime"),
    ],
)
def test_torchtitan_tables_of_one_size_are_no_scaling(tmp_path: Path, title: str, ranks: int, kind: str) -> None:
    told = [{**row, "ranks": ranks} for row in rows("scaling/torchtitan_llama3_h100_202412.md", title)]
    same = [("devices_per_node", "8"), ("hardware", "H100"), ("model", "405B"), ("torch", "1963fc8"),
            ("global_batch", "512")]  # fmt: skip
    lines = [line.replace("Parallelism", "recipe") for line in lines_of(told)]
    result = judged(tmp_path, *lines, same=same)
    assert {each.kind for each in result.comparisons} == {kind}
    assert claimed(result) == {"normalized_throughput"}


@pytest.mark.parametrize(("title", "ranks", "ratios"), [
    ("#### Llama3 70b", 256, [1.092, 1.164, 1.042]), ("#### Llama3 8b", 64, [1.099, 1.097, 1.056]),
])  # fmt: skip
def test_async_tp_is_a_comparison_of_techniques(tmp_path: Path, title: str, ranks: int, ratios: list[float]) -> None:
    told = [
        {"ranks": ranks, "precision": row["Quantization"], "technique": name, "tps/gpu": row[f"{name} tokens/sec"]}
        for row in rows("scaling/torchtitan_asyncTP.md", title) for name in ("Vanilla TP", "Async TP")
    ]  # fmt: skip
    same = [("devices_per_node", "8"), ("hardware", "H100"), ("model", "Llama 3.1"), ("torch", "38410cf9"),
            ("global_batch", "512")]  # fmt: skip
    result = judged(tmp_path, *lines_of(told), same=same)
    assert {each.kind for each in result.comparisons} == {"same devices"}
    pairs = [each for each in result.comparisons if each.differences == ("technique: Vanilla TP against Async TP",)]
    assert [values(each)["normalized_throughput"] for each in pairs] == pytest.approx(ratios, abs=1e-3)
    assert "efficiency" not in claimed(result)


def test_bigscience_grows_the_model_and_its_bubble_explains_the_rest(tmp_path: Path) -> None:
    page = "scaling/bigscience_maxmodel_trap.md"
    text = "\n".join(lines_of(rows(page)))
    with pytest.raises(ReadError, match=r'speed: got "0.661s", want a unit such as'):
        points(tmp_path, text, same=())
    lines = text.replace("Speed", "step time").replace("TFlops", "note").splitlines()
    same = [("devices_per_node", "4"), ("hardware", "V100 16GB"), ("software", "Megatron-LM")]
    result = judged(tmp_path, *lines, same=same)
    assert set(kinds(result).values()) == {"another regime"}
    assert all(any(text.startswith("size: ") for text in each.differences) for each in result.comparisons)
    evidence = " ".join(note.evidence for each in result.comparisons for note in each.notes if note.kind == "bubble")
    assert "42.9 % of 4 stages with 4 microbatches" in evidence
    assert "94 % of 64 stages with 4 microbatches" in evidence
    assert "efficiency" not in claimed(result)
    assert result.curves == ()


@pytest.mark.parametrize("name", [
    "coreweave_gb200_racks.csv", "mle_network_benchmarks.md", "mlperf41_dell_lora_8n_result_0.txt",
    "mlperf41_nvidia_ssd_1n_result_0.txt",
])  # fmt: skip
def test_what_is_no_table_of_points_is_refused(name: str) -> None:
    with pytest.raises(ReadError, match=r"no column is a figure|want CSV with a header"):
        read_points(CASES / "scaling" / name)


def undecided(result: JudgedPoints) -> str:
    """Why; nobody is accused, and no ratio is claimed."""
    (found,) = result.comparisons
    assert found.kind == "undecided"
    assert {judgement.verdict for judgement in found.judgements} == {Verdict.UNDECIDED}
    accuses_nobody(result)
    return found.why


def accuses_nobody(result: JudgedPoints) -> None:
    for note in [note for each in result.comparisons for note in each.notes]:
        assert note.level == "note"
        assert not re.search(r"fabric|network|link|NIC|InfiniBand", f"{note.suspect} {note.kind} {note.evidence}", re.I)


def test_diamond(tmp_path: Path) -> None:
    before, after = re.findall(r"from ([\d.]+) to ([\d.]+)\.", capture("diagnosis/diamond37_8x_h100.md"))[0]
    same = [("hardware", "DGX H100"), ("nodes", "1")]
    why = undecided(judged(tmp_path, "gpus,it/s", f"1,{before}", f"8,{after}", same=same))
    assert "a speedup of 0.07 if the global batch was the same, 0.56 times the work a second on 8 times the dev" in why


def test_kohya(tmp_path: Path) -> None:
    assert "speed is same as 1x" in capture("diagnosis/kohya1434_2x_h100_same.md")
    why = undecided(judged(tmp_path, "gpus,it/s", "1,1.5", "2,1.5", same=[("hardware", "H100"), ("nodes", "1")]))
    assert "a speedup of 1 if the global batch was the same, 2 times the work a second on 2 times the devices" in why


def test_yzhang(tmp_path: Path) -> None:
    one, two = re.findall(r"about (\d+) seconds", capture("diagnosis/yzhang_parser55_reboot.md"))
    why = undecided(judged(tmp_path, "gpus,epoch_time_s", f"1,{one}", f"2,{two}", same=[("nodes", "1")]))
    assert "0.431 times the work a second on 2 times the devices" in why


def test_alpa(tmp_path: Path) -> None:
    capture("diagnosis/alpa621_mnist.md")
    result = judged(tmp_path, "nodes,gpus_per_node,step_time_s", "1,4,1", "2,4,5", same=[("model", "mnist")])
    assert "the table does not tell hardware, versions, global batch" in undecided(result)


def test_llm_foundry(tmp_path: Path) -> None:
    assert "Train batch size now 2x bigger" in capture("diagnosis/llmfoundry336_no_ib.md")
    lines = ["nodes,gpus_per_node,global_batch,step_time_s", "1,8,512,10", "2,8,1024,80"]
    result = judged(tmp_path, *lines, same=[("model", "mpt"), ("hardware", "A100")])
    assert "weak scaling if it is the same" in undecided(result)
    (note,) = [note for note in result.comparisons[0].notes if note.kind == "slower on more devices"]
    assert note.evidence == "0.25 times the work a second on 2 times the devices"


def test_tutel(tmp_path: Path) -> None:
    (before,) = re.findall(r"step_time = ([\d.]+)\)", capture("diagnosis/tutel160_100x.md"))
    lines = ["nodes,gpus_per_node,step_time_s", f"1,8,{before}", "4,8,1"]
    undecided(judged(tmp_path, *lines, same=[("hardware", "A100")]))


def test_internlm_compares_two_kinds_of_nodes(tmp_path: Path) -> None:
    assert "w/ PCIE" in capture("diagnosis/internlm22_pcie.md")
    same = [("nodes", "1"), ("gpus", "8"), ("model", "7B"), ("software", "InternLM")]
    result = judged(tmp_path, "hardware,tokens/gpu/s", "NVLink,4234", "PCIe,2105", same=same)
    found = between(result, "1 x 8", "1 x 8")
    assert (found.kind, found.differences) == ("another regime", ("hardware: NVLink against PCIe",))
    assert claimed(result) == {"normalized_throughput"}
    accuses_nobody(result)


def test_bigscience_on_128_nodes_has_too_few_microbatches(tmp_path: Path) -> None:
    text = capture("diagnosis/bigscience_128nodes_gas16.md")
    batch, accumulation = (int(re.findall(rf"{name}=(\d+)", text)[0]) for name in ("GBS", "only GAS"))
    lines = ["nodes,gpus_per_node,global_batch,pp,gas,tflops_per_gpu"]
    lines += [f"64,4,{batch},4,{2 * accumulation},36", f"128,4,{batch},4,{accumulation},30"]
    result = judged(tmp_path, *lines, same=[("model", "13B"), ("hardware", "V100 32GB")])
    undecided(result)
    (bubble,) = [note.evidence for note in result.comparisons[0].notes if note.kind == "bubble"]
    assert "8.57 % of 4 stages with 32 microbatches and 15.8 % of 4 stages with 16" in bubble
