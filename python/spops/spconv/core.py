# SPDX-License-Identifier: Apache-2.0
"""spconv.core: the names of its algorithms. Here they choose nothing."""
from enum import Enum


class ConvAlgo(Enum):
    Native = 0
    MaskImplicitGemm = 1
    MaskSplitImplicitGemm = 2


class AlgoHint(Enum):
    NoHint = 0
    Fowrard = 1
    BackwardInput = 2
    BackwardWeight = 4
