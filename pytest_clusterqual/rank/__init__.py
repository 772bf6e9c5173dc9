"""Room: what runs under torchrun. Nobody imports it; torchrun is given its name.

Modules here may import torch and numpy, never pytest, pydantic, pint or yaml: a compute node
needs nothing but torch and this package. This file stays empty of imports, so that a rank can
tie its life to its parent's before it spends seconds on importing torch.
"""
