# SPDX-License-Identifier: Apache-2.0
"""What a row's Python function takes, whatever framework its arrays are of."""
from __future__ import annotations

import keyword

from ._rows import COMM, ENUM, FLAGS, FLOAT, FLOATS, INT, INTS, PLAN, TENSOR, Argument, Operator, operators


def python_name(name: str) -> str:
    return name + "_" if keyword.iskeyword(name) else name


def is_given(o: Argument) -> bool:
    """An optional output that a call changes: the caller gives what it holds."""
    return o.optional and o.updated and not o.name.startswith("grad_")


def is_free(op: Operator, o: Argument) -> bool:
    """Whether the caller may say what dtype an output has."""
    if "|" in o.type:
        return True
    return o.type in op.variables and not any(a.kind == TENSOR and a.type == o.type and not a.optional for a in op.inputs)


def free_outputs(op: Operator) -> list[Argument]:
    return [o for o in op.outputs if o.kind == TENSOR and not o.optional and is_free(op, o)]


def backward_of(op: Operator) -> Operator | None:
    return operators.get(op.gradient.operator) if op.gradient else None


def extra_attributes(op: Operator) -> list[Argument]:
    """Attributes that the gradient alone has."""
    names = {a.name for a in op.attributes}
    back = backward_of(op)
    return [a for a in back.attributes if a.name not in names] if back else []


def is_sum(op: Operator) -> bool:
    """A layer, whose gradient is that of its sum: what follows the sum is the framework's to differentiate."""
    return op.gradient is not None and "grad_sum" in op.gradient.arguments


def differentiable(op: Operator) -> list[str]:
    """Inputs that have a gradient."""
    if op.gradient is None:
        return []
    layer = [a for a in ("bias", "scale", "shift", "residual") if is_sum(op) and any(i.name == a for i in op.inputs)]
    return list(dict.fromkeys([*op.gradient.inputs, *layer]))


def all_optional(op: Operator) -> bool:
    """Whether a call gives all outputs where the caller names none."""
    return all(o.optional and not o.updated or o.name.startswith("grad_") for o in op.outputs)


def parameters(op: Operator, array: str) -> list[tuple[str, str, str]]:
    """(name, annotation, default, "" where there is none), without outputs.

    array: how annotations name one."""
    kinds_of = {INT: "int", FLOAT: "float", FLAGS: "int | str", INTS: "int | Sequence[int] | None"}
    kinds_of[FLOATS] = "float | Sequence[float] | None"
    attributes, out = [*op.attributes, *extra_attributes(op)], []

    def annotation(a: Argument) -> str:
        if a.kind in (TENSOR, PLAN, COMM):
            return {TENSOR: array, PLAN: "Plan", COMM: "Comm"}[a.kind] + (" | None" if a.optional else "")
        if a.kind == ENUM:
            return "str | int"
        return "bool" if a.type == "bool" else kinds_of[a.kind]

    for a in op.inputs:
        if not a.optional:
            out.append((python_name(a.name), annotation(a), ""))
    for a in attributes:
        if not a.has_default:
            out.append((python_name(a.name), annotation(a), ""))
    for a in op.inputs:
        if a.optional:
            out.append((python_name(a.name), annotation(a), "None"))
    for a in attributes:
        if a.has_default:
            out.append((python_name(a.name), annotation(a), repr(a.default)))
    return out


def documentation(op: Operator, parameters: list[tuple[str, str, str]], more: list[str]) -> str:
    """A docstring; more: lines after those of the parameters that the row has."""
    of = {p[0]: p for p in parameters}
    lines = [op.doc, "", "Parameters", "----------"]
    for a in (*op.inputs, *op.attributes, *extra_attributes(op), *(() if op.makes_plan else op.outputs)):
        n = python_name(a.name)
        if n not in of:
            continue
        text = a.type
        if a.kind == TENSOR:
            text = f"{a.type} [{', '.join(a.dims)}]"
            if a.first or a.last:
                text += f", {a.first or '0'} to {a.last}"
        elif a.kind == PLAN:
            text = f"Plan of kind {a.type}"
        elif a.kind == COMM:
            text = "Comm, all of whose ranks call"
        elif a.kind in (ENUM, FLAGS):
            text = f"{a.type}: {', '.join(a.values)}" + (", joined by |" if a.kind == FLAGS else "")
        elif a.kind in (INTS, FLOATS):
            text = f"{'i64' if a.kind == INTS else 'f64'} numbers, at most {a.count}"
        elif a.first or a.last:
            text = f"{a.type}, {a.first} to {a.last}"
        if a.needs:
            text += f"; with {a.needs}"
        if of[n][2]:
            text += f"; default {of[n][2]}"
        lines.append(f"{n} : {text}")
    lines += more
    variables = [f"{v} is {t}" for v, t in op.variables.items()]
    lines += ["", "Returns", "-------"]
    returned = ", ".join(o.name + (" (where wanted)" if o.optional else "") for o in op.outputs)
    lines.append(f"Plan of kind {op.outputs[0].type}" if op.makes_plan else returned)
    if variables:
        lines += ["", "Dtypes: " + "; ".join(variables) + "."]
    if op.gradient:
        lines += ["", f"Gradients: of {', '.join(op.gradient.inputs)}, once, by {op.gradient.operator}."]
    return "\n".join(lines)
