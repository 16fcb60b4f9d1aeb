# SPDX-License-Identifier: Apache-2.0
"""Type stub of spops.functional, from the rows: ``python -m spops._stubs`` writes functional.pyi."""
from __future__ import annotations

from pathlib import Path

from . import _generate
from ._rows import operators

_head = '''# SPDX-License-Identifier: Apache-2.0
# Written by python -m spops._stubs from the list of operators.
from collections.abc import Sequence

import torch
from torch import Tensor

from ._plan import Plan
'''


def text() -> str:
    lines = [_head]
    for name, op in operators.items():
        arguments = ",\n".join(f"    {n}: {t}" + (f" = {d}" if d else "") for n, t, d in _generate.parameters(op))
        if op.makes_plan:
            result = "Plan"
        elif len(op.outputs) == 1:
            result = "Tensor"
        else:
            result = "Tensor | tuple[Tensor, ...]" if any(o.optional for o in op.outputs) else f"tuple[{', '.join('Tensor' for _ in op.outputs)}]"
        lines.append(f"def {name}(\n{arguments},\n) -> {result}: ...  # {op.doc}\n")
    return "\n".join(lines)


if __name__ == "__main__":
    Path(__file__).with_name("functional.pyi").write_text(text())
