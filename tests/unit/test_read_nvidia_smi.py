"""`nvidia-smi -q`, XML and text, of an old and a new driver: one GPU is the same GPU in each form."""

from __future__ import annotations

import dataclasses
import re

import pytest
from captures import damaged
from hypothesis import given, settings

from pytest_clusterqual.errors import ReadError
from pytest_clusterqual.model.hardware import Gpu
from pytest_clusterqual.read.captured import XML_LIMIT
from pytest_clusterqual.read.nvidia_smi import read_nvidia_smi

OLD_XML = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v11.dtd">
<nvidia_smi_log>
	<timestamp>Mon Jan  4 10:00:00 2021</timestamp>
	<driver_version>470.42.01</driver_version>
	<cuda_version>11.4</cuda_version>
	<attached_gpus>1</attached_gpus>
	<gpu id="00000000:3B:00.0">
		<product_name>NVIDIA A100-SXM4-40GB</product_name>
		<mig_mode>
			<current_mig>Disabled</current_mig>
			<pending_mig>Enabled</pending_mig>
		</mig_mode>
		<uuid>GPU-0</uuid>
		<minor_number>3</minor_number>
		<pci>
			<pci_bus_id>00000000:3B:00.0</pci_bus_id>
			<pci_gpu_link_info>
				<pcie_gen>
					<max_link_gen>4</max_link_gen>
					<current_link_gen>3</current_link_gen>
				</pcie_gen>
				<link_widths>
					<max_link_width>16x</max_link_width>
					<current_link_width>8x</current_link_width>
				</link_widths>
			</pci_gpu_link_info>
		</pci>
		<fan_speed>N/A</fan_speed>
		<clocks_throttle_reasons>
			<clocks_throttle_reason_gpu_idle>Active</clocks_throttle_reason_gpu_idle>
			<clocks_throttle_reason_applications_clocks_setting>Active</clocks_throttle_reason_applications_clocks_setting>
			<clocks_throttle_reason_sw_power_cap>Not Active</clocks_throttle_reason_sw_power_cap>
			<clocks_throttle_reason_hw_slowdown>Active</clocks_throttle_reason_hw_slowdown>
			<clocks_throttle_reason_hw_thermal_slowdown>Active</clocks_throttle_reason_hw_thermal_slowdown>
			<clocks_throttle_reason_hw_power_brake_slowdown>Not Active</clocks_throttle_reason_hw_power_brake_slowdown>
			<clocks_throttle_reason_sync_boost>Not Active</clocks_throttle_reason_sync_boost>
			<clocks_throttle_reason_sw_thermal_slowdown>Not Active</clocks_throttle_reason_sw_thermal_slowdown>
		</clocks_throttle_reasons>
		<fb_memory_usage><total>40536 MiB</total><used>10 MiB</used></fb_memory_usage>
		<bar1_memory_usage><total>65536 MiB</total></bar1_memory_usage>
		<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Disabled</pending_ecc></ecc_mode>
		<ecc_errors>
			<volatile>
				<sram_correctable>5</sram_correctable><sram_uncorrectable>1</sram_uncorrectable>
				<dram_correctable>7</dram_correctable><dram_uncorrectable>2</dram_uncorrectable>
			</volatile>
			<aggregate><sram_uncorrectable>100</sram_uncorrectable></aggregate>
		</ecc_errors>
		<temperature><gpu_temp>41 C</gpu_temp><gpu_temp_max_threshold>92 C</gpu_temp_max_threshold></temperature>
		<power_readings>
			<power_draw>61.25 W</power_draw>
			<power_limit>400.00 W</power_limit>
			<enforced_power_limit>300.00 W</enforced_power_limit>
		</power_readings>
		<clocks><graphics_clock>1 MHz</graphics_clock><sm_clock>1095 MHz</sm_clock><mem_clock>1215 MHz</mem_clock>
		</clocks>
		<applications_clocks><mem_clock>1 MHz</mem_clock></applications_clocks>
		<max_clocks><sm_clock>1410 MHz</sm_clock><mem_clock>1593 MHz</mem_clock></max_clocks>
		<processes>
		</processes>
	</gpu>
</nvidia_smi_log>
"""
OLD_TEXT = """\

==============NVSMI LOG==============

Timestamp                                 : Mon Jan  4 10:00:00 2021
Driver Version                            : 470.42.01
CUDA Version                              : 11.4

Attached GPUs                             : 1
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA A100-SXM4-40GB
    MIG Mode
        Current                           : Disabled
        Pending                           : Enabled
    GPU UUID                              : GPU-0
    Minor Number                          : 3
    PCI
        Bus                               : 0x3B
        Bus Id                            : 00000000:3B:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 4
                Current                   : 3
            Link Width
                Max                       : 16x
                Current                   : 8x
    Fan Speed                             : N/A
    Clocks Throttle Reasons
        Idle                              : Active
        Applications Clocks Setting       : Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Not Active
        Display Clock Setting             : Not Active
    FB Memory Usage
        Total                             : 40536 MiB
        Used                              : 10 MiB
    BAR1 Memory Usage
        Total                             : 65536 MiB
    Ecc Mode
        Current                           : Enabled
        Pending                           : Disabled
    ECC Errors
        Volatile
            SRAM Correctable              : 5
            SRAM Uncorrectable            : 1
            DRAM Correctable              : 7
            DRAM Uncorrectable            : 2
        Aggregate
            SRAM Uncorrectable            : 100
    Temperature
        GPU Current Temp                  : 41 C
        GPU Max Operating Temp            : 92 C
    Power Readings
        Power Draw                        : 61.25 W
        Power Limit                       : 400.00 W
        Enforced Power Limit              : 300.00 W
    Clocks
        Graphics                          : 1100 MHz
        SM                                : 1095 MHz
        Memory                            : 1215 MHz
    Applications Clocks
        Memory                            : 1 MHz
    Max Clocks
        SM                                : 1410 MHz
        Memory                            : 1593 MHz
    Processes                             : None
"""
A100 = Gpu(
    index=0,
    model="NVIDIA A100-SXM4-40GB",
    uuid="GPU-0",
    pci="00000000:3B:00.0",
    memory=40536 * 2**20,
    mig=False,
    ecc=True,
    uncorrected=3,
    pcie_generation=3,
    pcie_generation_max=4,
    pcie_width=8,
    pcie_width_max=16,
    clock=1095e6,
    clock_max=1410e6,
    memory_clock=1215e6,
    memory_clock_max=1593e6,
    power=61.25,
    power_limit=300.0,
    temperature=41.0,
    throttle=("HW slowdown", "HW thermal slowdown"),
)
NEW_XML = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
	<driver_version>570.10.01</driver_version>
	<cuda_version>12.8</cuda_version>
	<attached_gpus>1</attached_gpus>
	<gpu id="00000000:1B:00.0">
		<product_name>NVIDIA H100 80GB HBM3</product_name>
		<mig_mode><current_mig>Enabled</current_mig></mig_mode>
		<mig_devices>
			<mig_device><index>0</index><fb_memory_usage><total>9984 MiB</total></fb_memory_usage></mig_device>
		</mig_devices>
		<uuid>GPU-1</uuid>
		<pci>
			<pci_bus_id>00000000:1B:00.0</pci_bus_id>
			<pci_gpu_link_info>
				<pcie_gen>
					<max_link_gen>5</max_link_gen>
					<current_link_gen>5</current_link_gen>
					<device_current_link_gen>4</device_current_link_gen>
					<max_device_link_gen>6</max_device_link_gen>
					<max_host_link_gen>5</max_host_link_gen>
				</pcie_gen>
				<link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths>
			</pci_gpu_link_info>
		</pci>
		<clocks_event_reasons>
			<clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle>
			<clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
			<clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>
			<clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
			<clocks_event_reason_hw_power_brake_slowdown>Active</clocks_event_reason_hw_power_brake_slowdown>
			<clocks_event_reason_sync_boost>Active</clocks_event_reason_sync_boost>
			<clocks_event_reason_sw_thermal_slowdown>Not Active</clocks_event_reason_sw_thermal_slowdown>
		</clocks_event_reasons>
		<clocks_event_reasons_counters>
			<clocks_event_reasons_counters_sw_therm_slowdown>7000 us</clocks_event_reasons_counters_sw_therm_slowdown>
		</clocks_event_reasons_counters>
		<fb_memory_usage><total>81559 MiB</total></fb_memory_usage>
		<ecc_mode><current_ecc>Disabled</current_ecc></ecc_mode>
		<ecc_errors>
			<volatile>
				<sram_correctable>0</sram_correctable>
				<sram_uncorrectable_parity>1</sram_uncorrectable_parity>
				<sram_uncorrectable_secded>2</sram_uncorrectable_secded>
				<dram_correctable>0</dram_correctable>
				<dram_uncorrectable>4</dram_uncorrectable>
			</volatile>
		</ecc_errors>
		<temperature><gpu_temp>29 C</gpu_temp><memory_temp>44 C</memory_temp></temperature>
		<gpu_power_readings>
			<average_power_draw>70.00 W</average_power_draw>
			<instant_power_draw>72.50 W</instant_power_draw>
			<current_power_limit>650.00 W</current_power_limit>
			<requested_power_limit>640.00 W</requested_power_limit>
			<max_power_limit>700.00 W</max_power_limit>
		</gpu_power_readings>
		<module_power_readings><instant_power_draw>900.00 W</instant_power_draw></module_power_readings>
		<clocks><sm_clock>345 MHz</sm_clock><mem_clock>2619 MHz</mem_clock></clocks>
		<max_clocks><sm_clock>1980 MHz</sm_clock><mem_clock>2619 MHz</mem_clock></max_clocks>
		<processes></processes>
	</gpu>
</nvidia_smi_log>
"""
NEW_TEXT = """\
Driver Version                                         : 570.10.01
CUDA Version                                           : 12.8
Attached GPUs                                          : 1
GPU 00000000:1B:00.0
    Product Name                                       : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                                        : Enabled
    MIG Device
        Index                                          : 0
        FB Memory Usage
            Total                                      : 9984 MiB
    GPU UUID                                           : GPU-1
    PCI
        Bus Id                                         : 00000000:1B:00.0
        GPU Link Info
            PCIe Generation
                Max                                    : 5
                Current                                : 5
                Device Current                         : 4
                Device Max                             : 6
                Host Max                               : 5
            Link Width
                Max                                    : 16x
                Current                                : 16x
    Clocks Event Reasons
        Idle                                           : Not Active
        SW Power Cap                                   : Active
        HW Slowdown                                    : Active
            HW Thermal Slowdown                        : Not Active
            HW Power Brake Slowdown                    : Active
        Sync Boost                                     : Active
        SW Thermal Slowdown                            : Not Active
    Clocks Event Reasons Counters
        SW Thermal Slowdown                            : 7000 us
    FB Memory Usage
        Total                                          : 81559 MiB
    ECC Mode
        Current                                        : Disabled
    ECC Errors
        Volatile
            SRAM Correctable                           : 0
            SRAM Uncorrectable Parity                  : 1
            SRAM Uncorrectable SEC-DED                 : 2
            DRAM Correctable                           : 0
            DRAM Uncorrectable                         : 4
        Aggregate
            DRAM Uncorrectable                         : 9
    Temperature
        GPU Current Temp                               : 29 C
        Memory Current Temp                            : 44 C
    GPU Power Readings
        Average Power Draw                             : 70.00 W
        Instantaneous Power Draw                       : 72.50 W
        Current Power Limit                            : 650.00 W
        Requested Power Limit                          : 640.00 W
        Max Power Limit                                : 700.00 W
    Module Power Readings
        Instantaneous Power Draw                       : 900.00 W
    Clocks
        SM                                             : 345 MHz
        Memory                                         : 2619 MHz
    Max Clocks
        SM                                             : 1980 MHz
        Memory                                         : 2619 MHz
    Processes
        GPU instance ID                                : 1
"""
H100 = Gpu(
    index=0,
    model="NVIDIA H100 80GB HBM3",
    uuid="GPU-1",
    pci="00000000:1B:00.0",
    memory=81559 * 2**20,
    mig=True,
    ecc=False,
    uncorrected=7,
    pcie_generation=5,
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
    clock=345e6,
    clock_max=1980e6,
    memory_clock=2619e6,
    memory_clock_max=2619e6,
    power=72.5,
    power_limit=650.0,
    temperature=29.0,
    throttle=("SW power cap", "HW slowdown", "HW power brake", "sync boost"),
)


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


@pytest.mark.parametrize(
    "text",
    [
        "<nvidia_smi_log>" + "<a>" * 100_000 + "</a>" * 100_000 + "</nvidia_smi_log>",
        f"<nvidia_smi_log><gpu><{'a' * 500_000}>" + "<b>1</b>" * 50_000 + f"</{'a' * 500_000}></gpu></nvidia_smi_log>",
        "GPU 00000000:01:00.0\n" + "h" * 500_000 + "\n" + " k : 1\n" * 50_000,
        "GPU 00000000:01:00.0\n" + "".join(" " * depth + "k\n" for depth in range(1500)),
    ],
    ids=["deep XML", "long tag", "long key", "deep text"],
)
def test_text_made_to_grow_does_not(text: str) -> None:
    report = read_nvidia_smi(text)
    assert all(gpu == Gpu(index=0) for gpu in report.gpus)


@given(damaged(OLD_XML, OLD_TEXT, NEW_XML, NEW_TEXT))
@settings(deadline=None)
def test_any_text_gives_a_report_or_a_read_error(text: str) -> None:
    try:
        report = read_nvidia_smi(text)
    except ReadError:
        return
    assert [gpu.index for gpu in report.gpus] == list(range(len(report.gpus)))
