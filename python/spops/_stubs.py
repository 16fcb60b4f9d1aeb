# SPDX-License-Identifier: Apache-2.0
"""Type stubs of spops.functional and spops.jax, from the rows, and of spops.nn, whose layers for 1 to 4 axes
are made in a loop: ``python -m spops._stubs`` writes functional.pyi, jax.pyi and nn.pyi.
"""
from __future__ import annotations

import inspect
from pathlib import Path

from . import _generate, nn
from ._rows import of_tensors, operators

_head = '''# SPDX-License-Identifier: Apache-2.0
# Written by python -m spops._stubs from the list of operators.
from collections.abc import Sequence

import torch
from torch import Tensor

from ._plan import Plan
from .comm import Comm
'''

_jax_head = '''# SPDX-License-Identifier: Apache-2.0
# Written by python -m spops._stubs from the list of operators.
from collections.abc import Sequence
from typing import NamedTuple

from jax import Array
from jax.typing import DTypeLike

from ._jax_plans import Plan as Plan

class Level(NamedTuple):
    coords: Plan
    num_rows: Array
    within: Plan
    down: Plan | None
    up: Plan | None

def levels(
    coords: Plan, num: int, size: int = 3, stride: int = 2, rows: Sequence[int] | None = None, pairs_per_row: int | None = None
) -> list[Level]: ...
'''


def _functions(rows, parameters, array: str, more: str) -> list[str]:
    """A line a function; more: what one that makes a plan takes besides."""
    lines = []
    for name, op in rows.items():
        arguments = [f"    {n}: {t}" + (f" = {d}" if d else "") for n, t, d in parameters(op)]
        if op.makes_plan:
            result = "Plan"
            arguments += [more] if more else []
        elif len(op.outputs) == 1:
            result = array
        elif any(o.optional for o in op.outputs):
            result = f"{array} | tuple[{array}, ...]"
        else:
            result = f"tuple[{', '.join(array for _ in op.outputs)}]"
        text = ",\n".join(arguments)
        lines.append(f"def {name}(\n{text},\n) -> {result}: ...  # {op.doc}\n")
    return lines


def text() -> str:
    return "\n".join([_head, *_functions(operators, _generate.parameters, "Tensor", "")])


def jax_text() -> str:
    from . import jax

    return "\n".join([_jax_head, *_functions(of_tensors, jax.parameters, "Array", "    **capacities: int")])


_nn_head = """# SPDX-License-Identifier: Apache-2.0
# Written by python -m spops._stubs.
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from ._plan import Plan
from ._tensor import Kernel, SparseTensor

_Sizes = int | Sequence[int]
"""
_types = {
    **dict.fromkeys(("in_channels", "out_channels", "groups", "channels", "heads", "taps", "in_features", "out_features", "dims"), "int"),
    **dict.fromkeys(("kernel_size", "dilation", "output_padding"), "_Sizes"), "stride": "_Sizes | None", "padding": "_Sizes | str",
    **dict.fromkeys(("bias", "affine", "relu", "inplace", "channels_first"), "bool"), "key": "Hashable | None", "reduce": "str",
    "how": "str", "activation": "str", "activation_slope": "float", "device": "torch.device | str | None", "dtype": "torch.dtype | None", "eps": "float", "momentum": "float",
    "expansion": "float", "rotary_base": "float", "args": "nn.Module",
}  # fmt: skip


def _parameters(f) -> str:
    parts = []
    for p in inspect.signature(f).parameters.values():
        if p.name == "self":
            parts.append("self")
            continue
        given = p.annotation if isinstance(p.annotation, str) else _types.get(p.name, "object")
        star = "*" if p.kind is p.VAR_POSITIONAL else ""
        default = "" if p.default is p.empty else f" = {p.default!r}"
        parts.append(f"{star}{p.name}: {given}{default}")
    return ", ".join(parts)


def nn_text() -> str:
    lines = [_nn_head]
    for name in sorted(n for n, v in vars(nn).items() if isinstance(v, type) and v.__module__ == nn.__name__):
        layer = getattr(nn, name)
        base = layer.__mro__[1]
        lines.append(f"class {name}({base.__name__ if base.__module__ == nn.__name__ else 'nn.' + base.__name__}):")
        if "__init__" in vars(layer):
            lines.append(f"    def __init__({_parameters(layer.__init__)}) -> None: ...")
        forward = vars(layer).get("forward")
        if forward is not None:
            of_both = "x" in inspect.signature(forward).parameters and name not in ("Convolution", "Pool", "GlobalPool", "Pruning")
            if of_both:
                parts = _parameters(forward).split(", ")  # self and x come first
                parts[1] = "x: SparseTensor | Tensor"
                lines.append(f"    def forward({', '.join(parts)}) -> SparseTensor | Tensor: ...")
            else:
                result = "Tensor" if name in ("GlobalPool", "PointConv", "AttentionBlock", "BEVPool") else "SparseTensor"
                lines.append(f"    def forward({_parameters(forward)}) -> {result}: ...")
        if lines[-1].startswith("class"):
            lines.append("    ...")
    lines.append(f"def convolve({_parameters(nn.convolve)}) -> SparseTensor: ...")
    lines.append("def convert_batchnorm(module: nn.Module) -> nn.Module: ...")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("functional.pyi").write_text(text())
    Path(__file__).with_name("nn.pyi").write_text(nn_text())
    Path(__file__).with_name("jax.pyi").write_text(jax_text())
