"""Words: workload, layout, topology, requirement, measurement, verdict, record.

Plain frozen dataclasses of the standard library, so that a compute node needs nothing more to
speak them. Quantities are floats in the canonical units of `pytest_clusterqual.units`.
"""
