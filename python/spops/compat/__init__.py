# SPDX-License-Identifier: Apache-2.0
"""Other libraries' names on spops, so that networks written for them run from their own source.

    import spops.compat
    spops.compat.install("spconv", "flash_attn", "torch_scatter")   # before the network is imported

    from pointcept.models.point_transformer_v3 import PointTransformerV3

========================  =====================================================
``spconv``                :mod:`spops.spconv`, whole
``flash_attn``            :mod:`spops.compat.flash_attn`: attention over lists of rows
``torch_scatter``         :mod:`spops.compat.torch_scatter`: reductions by segments and by index
========================  =====================================================

What is not there raises NotImplementedError with a sentence, never another result.
"""
from __future__ import annotations

import importlib
import sys
import types

NAMES = {
    "spconv": "spops.spconv",
    "flash_attn": "spops.compat.flash_attn",
    "torch_scatter": "spops.compat.torch_scatter",
}
_SPCONV = ("", ".core", ".constants", ".pytorch", ".pytorch.modules", ".pytorch.conv", ".pytorch.pool", ".pytorch.identity", ".pytorch.tables")


def modules(*names: str) -> dict[str, types.ModuleType]:
    """The modules that stand for these libraries, by the names that imports look for."""
    found = {}
    for name in names:
        if name not in NAMES:
            raise ValueError(f"compat: there is no {name!r}, expected one of {' '.join(NAMES)}")
        for part in _SPCONV if name == "spconv" else ("",):
            found[name + part] = importlib.import_module(NAMES[name] + part)
    return found


def install(*names: str) -> None:
    """Later imports of these libraries get spops; refused where another one is imported already.

    names : of "spconv", "flash_attn", "torch_scatter"; none: all
    """
    found = modules(*(names or NAMES))
    for name, module in found.items():
        if sys.modules.get(name, module) is not module:
            raise ImportError(f"compat: {name} is imported already, from {getattr(sys.modules[name], '__file__', '?')}")
    sys.modules.update(found)
