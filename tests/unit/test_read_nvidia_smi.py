"""`nvidia-smi -q`, XML and text, of an old and a new driver: one GPU is the same GPU in each form."""

from __future__ import annotations

import dataclasses
import re
import tracemalloc

import pytest
from captures import damaged
from hypothesis import given, settings
from smi_texts import A100, H100, NEW_TEXT, NEW_XML, OLD_TEXT, OLD_XML

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.hardware import Gpu
from pytest_clusterqual.read.captured import XML_LIMIT
from pytest_clusterqual.read.nvidia_smi import read_nvidia_smi


@pytest.mark.parametrize("text", [OLD_XML, OLD_TEXT], ids=["xml", "text"])
def test_an_old_driver(text: str) -> None:
    report = read_nvidia_smi(text)
    assert (report.driver, report.cuda, report.problems) == ("470.42.01", "11.4", ())
    assert report.gpus == (A100,)


@pytest.mark.parametrize("text", [NEW_XML, NEW_TEXT], ids=["xml", "text"])
def test_a_new_driver(text: str) -> None:
    report = read_nvidia_smi(text)
    assert (report.driver, report.cuda, report.problems) == ("570.10.01", "12.8", ())
    assert report.gpus == (H100,)


def test_a_new_driver_still_may_call_the_draw_power_draw() -> None:
    text = NEW_TEXT.replace("Average Power Draw", "Power Draw        ").replace("Instantaneous Power Draw", "Other")
    assert read_nvidia_smi(text).gpus[0].power == 70.0


def doubled(text: str) -> str:
    """The same report with a second GPU at another address."""
    start = text.index("\t<gpu id") if "<gpu" in text else text.index("GPU 0000")
    end = text.index("</nvidia_smi_log>") if "<gpu" in text else len(text)
    second = text[start:end].replace("3B:00.0", "AF:00.0").replace("GPU-0", "GPU-9")
    return (
        (text[:end] + second + text[end:])
        .replace("gpus>1<", "gpus>2<")
        .replace("GPUs                             : 1", "GPUs : 2")
    )


@pytest.mark.parametrize("text", [OLD_XML, OLD_TEXT], ids=["xml", "text"])
def test_gpus_are_numbered_as_listed(text: str) -> None:
    report = read_nvidia_smi(doubled(text))
    assert report.problems == ()
    other = dataclasses.replace(A100, index=1, uuid="GPU-9", pci="00000000:AF:00.0")
    assert report.gpus == (A100, other)


@pytest.mark.parametrize(
    "nothing", ["N/A", "[N/A]", "Not Supported", "[Not Supported]", "Unknown Error", "[Unknown Error]"]
)
@pytest.mark.parametrize("text", [OLD_XML, OLD_TEXT], ids=["xml", "text"])
def test_what_is_not_available_is_none_and_never_zero(text: str, nothing: str) -> None:
    text = re.sub(r">[^<>\n]+</(?!pci_bus_id)", f">{nothing}</", text)
    text = re.sub(r"(?m)^( .* : )(?!00000000).*$", rf"\1{nothing}", text)
    assert read_nvidia_smi(text).gpus == (Gpu(index=0, pci="00000000:3B:00.0"),)


def test_before_ampere_uncorrected_errors_have_one_total() -> None:
    volta = """
        Volatile
            Single Bit
                Device Memory             : 4
                Total                     : 4
            Double Bit
                Device Memory             : 2
                Register File             : 1
                Total                     : 3
        Aggregate
"""
    start, end = OLD_TEXT.index("        Volatile"), OLD_TEXT.index("        Aggregate\n") + len("        Aggregate\n")
    assert read_nvidia_smi(OLD_TEXT[:start] + volta + OLD_TEXT[end:]).gpus[0].uncorrected == 3


def test_an_unknown_count_beside_a_known_one_is_left_out() -> None:
    text = OLD_TEXT.replace("SRAM Uncorrectable            : 1\n", "SRAM Uncorrectable            : N/A\n")
    assert read_nvidia_smi(text).gpus[0].uncorrected == 2


def test_a_missing_gpu_is_said() -> None:
    text = OLD_TEXT.replace("GPUs                             : 1", "GPUs                             : 8")
    assert read_nvidia_smi(text).problems == ("8 GPUs are attached, 1 are told of: cut off, or asked with -i",)
    text = OLD_XML.replace("gpus>1<", "gpus>8<")
    assert read_nvidia_smi(text).problems == ("8 GPUs are attached, 1 are told of: cut off, or asked with -i",)


def test_no_gpu_is_no_error() -> None:
    report = read_nvidia_smi(
        OLD_TEXT[: OLD_TEXT.index("GPU 0000")].replace("GPUs                             : 1", "GPUs : 0")
    )
    assert (report.gpus, report.problems) == ((), ())


@pytest.mark.parametrize("text", [OLD_TEXT, NEW_TEXT], ids=["old", "new"])
def test_text_that_is_cut_says_so(text: str) -> None:
    for length in range(text.index("CUDA"), text.index("    Processes") + 8):
        report = read_nvidia_smi(text[:length])
        assert report.problems or "Attached GPUs" not in text[:length].rpartition("\n")[0], text[:length]


def test_a_number_without_its_unit_may_be_cut_off() -> None:
    end = OLD_TEXT.index("40536 MiB")
    assert read_nvidia_smi(OLD_TEXT[: end + len("40536 MiB")]).gpus[0].memory == A100.memory
    assert all(read_nvidia_smi(OLD_TEXT[: end + length]).gpus[0].memory is None for length in range(len("40536 MiB")))


def test_xml_that_is_cut_is_refused() -> None:
    for length in range(OLD_XML.index("<nvidia_smi_log"), len(OLD_XML) - 2, 7):
        with pytest.raises(ReadError):
            read_nvidia_smi(OLD_XML[:length])


def test_what_the_tool_prints_before_its_xml_is_skipped() -> None:
    noise = "Unable to determine the device handle for GPU1: 0000:AF:00.0: GPU is lost.\n"
    report = read_nvidia_smi(noise + OLD_XML.replace("gpus>1<", "gpus>2<"))
    assert report.gpus == (A100,)
    assert report.problems == ("2 GPUs are attached, 1 are told of: cut off, or asked with -i",)


BOMB = '<!DOCTYPE nvidia_smi_log [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><nvidia_smi_log>&b;</nvidia_smi_log>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'nvidia-smi -q: got "", want its text or its XML (-x)'),
        (
            "NVIDIA-SMI has failed because it couldn't communicate",
            "got \"NVIDIA-SMI has failed because it couldn't comm",
        ),
        (BOMB, "nvidia-smi -q -x: got an entity declaration, want plain XML"),
        ("<x><nvidia_smi_log/></x>", 'got the root "x", want "nvidia_smi_log"'),
        ("<nvidia_smi_log>&b;</nvidia_smi_log>", "want XML with the root <nvidia_smi_log>"),
        ("<nvidia_smi_log>\ud800</nvidia_smi_log>", "want XML with the root <nvidia_smi_log>"),
        ("<nvidia_smi_log>" + " " * XML_LIMIT, f"at most {XML_LIMIT} are read"),
        ("<nvidia_smi_log>" + "<gpu/>" * 300 + "</nvidia_smi_log>", "300 GPUs, at most 256 are read"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ReadError) as error:
        read_nvidia_smi(text)
    assert message in str(error.value)


LONG = "h" * 200_000


@pytest.mark.parametrize(
    "text",
    [
        "<nvidia_smi_log>" + "<a>" * 100_000 + "</a>" * 100_000 + "</nvidia_smi_log>",
        f"<nvidia_smi_log><gpu><{LONG}>{''.join(f'<b{i}/>' for i in range(1000))}</{LONG}></gpu></nvidia_smi_log>",
        f"GPU 00000000:01:00.0\n{LONG}\n" + "".join(f" k{i} : 1\n" for i in range(1000)),
        "GPU 00000000:01:00.0\n" + "".join(" " * depth + "k\n" for depth in range(1500)),
    ],
    ids=["deep XML", "long tag", "long key", "deep text"],
)
def test_text_made_to_grow_does_not(text: str) -> None:
    tracemalloc.start()
    try:
        report = read_nvidia_smi(text)
        assert tracemalloc.get_traced_memory()[1] < 48 * 2**20
    finally:
        tracemalloc.stop()
    assert all(gpu == Gpu(index=0) for gpu in report.gpus)


@given(damaged(OLD_XML, OLD_TEXT, NEW_XML, NEW_TEXT))
@settings(deadline=None)
def test_any_text_gives_a_report_or_a_read_error(text: str) -> None:
    try:
        report = read_nvidia_smi(text)
    except ReadError:
        return
    assert [gpu.index for gpu in report.gpus] == list(range(len(report.gpus)))
