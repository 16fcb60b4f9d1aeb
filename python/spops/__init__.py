# SPDX-License-Identifier: Apache-2.0
"""Sparse gather and scatter operators: segmented reductions, sparse and point convolutions, pooling,
attention over patches, on CPUs and NVIDIA GPUs.

    import spops.functional as F    every operator, plans as values
    import spops.nn as snn          layers, and spops.SparseTensor
"""
from . import _library, weights
from ._capacity import Capacity
from ._graph import Graph
from ._plan import Plan
from ._tensor import SparseTensor, devoxelize, prepare, voxelize

__version__ = _library.c.spops_version().decode()
__all__ = ["Capacity", "Graph", "Plan", "SparseTensor", "__version__", "devoxelize", "prepare", "voxelize", "weights"]
