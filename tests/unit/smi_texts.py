"""`nvidia-smi -q` of two GPUs, each as XML and as text, in the form of an old and of a new driver."""

from __future__ import annotations

from pytest_clusterqual.model.hardware import Gpu

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
