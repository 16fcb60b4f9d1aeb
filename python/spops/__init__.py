# SPDX-License-Identifier: Apache-2.0
"""Sparse gather and scatter operators: segmented reductions, sparse and point convolutions, pooling,
attention over patches, on CPUs and NVIDIA GPUs.

    import spops.functional as F    every operator for PyTorch, plans as values
    import spops.nn as snn          layers, and spops.SparseTensor
    import spops.jax as sj          every operator for JAX

PyTorch is imported when something is asked for that needs it.
"""
from . import _library

__version__ = _library.c.spops_version().decode()
__all__ = ["Capacity", "Graph", "Plan", "SparseTensor", "__version__", "comm", "crop_independent", "devoxelize", "hard_voxelize", "prepare", "ranks", "receptive_field", "receptive_field_of", "tiles", "voxelize", "weights"]
_modules = {"Capacity": "_capacity", "Graph": "_graph", "Plan": "_plan", **dict.fromkeys(("SparseTensor", "devoxelize", "hard_voxelize", "prepare", "voxelize"), "_tensor")}
_modules["crop_independent"] = "_layers"
_modules.update({name: "_receptive" for name in ("Layer", "Reach", "receptive_field", "receptive_field_of")})
_modules.update({name: name for name in ("comm", "functional", "nn", "ranks", "tiles", "weights")})


def __getattr__(name: str):
    from importlib import import_module

    if name not in _modules:
        raise AttributeError(f"module 'spops' has no attribute {name!r}")
    module = import_module(f".{_modules[name]}", __name__)
    value = module if _modules[name] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
