# SPDX-License-Identifier: Apache-2.0
"""Writes the Python functions of all operators from their rows, and executes them in _made.

For every row of the list that gives tensors:

    NAME_raw   allocates what is not given, and calls the library
    NAME_grad  an autograd.Function around it, where the row has a gradient
    spops::NAME  an operator of torch.library with its fake and gradient, for compilers and modes
    NAME       what a user calls: chooses among these

and NAME alone for a row that makes a plan.
"""
from __future__ import annotations

import linecache

import torch

from . import _made, _signature
from ._plan import HEAD
from ._rows import COMM, ENUM, FLAGS, FLOAT, FLOATS, INT, INTS, PLAN, TENSOR, Argument, Operator, kinds, operators, python_of
from ._signature import is_given, python_name

library = torch.library.Library("spops", "DEF")
sources: dict[str, str] = {}  # the code of every function, by row


class Row:
    """What the pieces of generated code need to know of a row."""

    def __init__(self, op: Operator):
        self.op = op
        self.tensors = [a for a in op.inputs if a.kind == TENSOR]
        self.plans = [a for a in op.inputs if a.kind == PLAN]
        self.comms = [a for a in op.inputs if a.kind == COMM]
        self.required = [a for a in self.tensors if not a.optional]
        self.first = python_name(self.required[0].name) if self.required else None
        self.is_placeless = all(a.optional for a in op.inputs)  # no argument says where it runs
        self.bound = {}  # variable of dtypes -> the inputs that have it
        for a in sorted(self.tensors, key=lambda a: a.optional):
            self.bound.setdefault(a.type, []).append(a)
        self.free = _signature.free_outputs(op)
        self.backward = _signature.backward_of(op)
        self.is_sum = _signature.is_sum(op)
        # with exact sizes all rows are written; with capacities those behind are left alone
        self.is_whole = self.is_sum or any(a.name == "grad_sum" for a in op.inputs)
        self.extra = _signature.extra_attributes(op)
        self.differentiable = _signature.differentiable(op)
        self.all_optional = _signature.all_optional(op)

    # ---- dtypes and shapes ----

    def may_be_f4(self, a: Argument) -> bool:
        words = [w for part in a.type.split("|") for w in self.op.variables.get(part, part).split("|")]
        return "narrow" in words or "f4e2m1" in words

    def dtype(self, o: Argument) -> str:
        """Python's expression of an output's dtype."""
        words = o.type.split("|")
        variables = [w for w in words if w in self.op.variables]
        if o.type.startswith("sum("):
            return f"sum_dtype({python_name(self.bound[o.type[4:-1]][0].name)}.dtype)"
        if not variables:
            return f"dtypes[{words[0]!r}]"
        v = variables[0]
        inputs = self.bound.get(v, [])
        fixed = next((f"{python_name(a.name)}.dtype" for a in inputs if not a.optional), None)
        if fixed is None:
            allowed = self.op.variables[v].split("|")
            base = next((w for w in allowed if w in self.op.variables), None)
            if base is not None:
                fixed = next((f"{python_name(a.name)}.dtype" for a in self.bound.get(base, []) if not a.optional), None)
            for a in reversed(inputs):
                n = python_name(a.name)
                fixed = f"({n}.dtype if {n} is not None else {fixed})" if fixed else f"{n}.dtype"
            if fixed is None:
                flat = tuple(x for w in allowed for x in _made.sets.get(w, (w,)))
                return f"_choose(dtype, {self.first}.dtype, {flat!r}, {self.op.name!r}, {o.name!r})"
        return f"(dtype if dtype is not None else {fixed})" if o in self.free else fixed

    def size_name(self, name: str) -> str:
        if "." in name:
            owner, f = name.split(".")
            if f in ("rows", "cols"):
                return f"{python_name(owner)}.shape[{0 if f == 'rows' else -1}]"
            kind = kinds[next(a.type for a in self.op.inputs if a.name == owner)]
            return f"{python_name(owner)}_f[{HEAD + kind.fields[f][0]}]"
        if any(a.name == name for a in self.op.attributes):
            return python_name(name)
        for a in [*self.required, *(() if name in self.op.inferred else self.tensors)]:
            for i, d in enumerate(a.dims):
                if d != name:
                    continue
                x = python_name(a.name)
                if a.blocks and i == 1:
                    return f"({x}.shape[1] * {x}.shape[2] if {x}.dim() == 3 else {x}.shape[1])"
                if len(a.dims) == 1:
                    return f"{x}.numel()"
                return f"_width({x})" if i == 1 and self.may_be_f4(a) else f"{x}.shape[{-1 if i else 0}]"
        if name in self.op.inferred:
            return "(" + python_of(self.op.inferred[name], self.size_name) + ")"
        if name in ("max", "min"):
            return name
        raise KeyError(f"{self.op.name}: size {name}")

    def allocate(self, o: Argument, is_fake: bool = False) -> str:
        """Python's expression of a new output."""
        dims = [python_of(d, self.size_name) for d in o.dims]
        dtype = self.dtype(o)
        if self.may_be_f4(o):
            dims[-1] = f"_cols({dims[-1]}, {dtype})"
        if o.blocks:  # as the first input of so many columns has them
            like = next(python_name(a.name) for a in self.tensors if a.blocks and a.dims[1] == o.dims[1])
            shape = f"({dims[0]}, *{like}.shape[1:])"
        else:
            shape = "(" + ", ".join(dims) + ",)"
        how = "empty"
        if o.updated and self.is_whole and self.plans:  # all rows, but those behind a capacity's
            how = "{" + f"{python_name(self.plans[0].name)}_d is not None" + "}" if not is_fake else "empty"
        elif o.updated:  # rows that the call leaves alone shall not be garbage
            reasons = [python_name(a.name) + " is not None" for a in self.tensors if a.optional and a.name == "num_rows"]
            reasons += [a.name for a in self.op.attributes if a.name == "accumulate"]
            how = f"{{{' or '.join(reasons)}}}" if reasons else "zeros"
        if self.first is None:
            return f"torch.{how}({shape}, dtype={dtype}, device=device)"
        text = f"{shape}, dtype={dtype})"
        if how[0] == "{":
            return f"({self.first}.new_zeros if {how[1:-1]} else {self.first}.new_empty)({text}"
        return f"{self.first}.new_{how}({text}"

    # ---- parameters ----

    def raw_parameters(self) -> list[str]:
        names = []
        for a in self.op.inputs:
            names.append(python_name(a.name))
            if a.kind == PLAN:
                names += [python_name(a.name) + "_f", python_name(a.name) + "_d"]
        names += [python_name(o.name) for o in self.op.outputs]
        names += [python_name(a.name) for a in self.op.attributes]
        if self.free:
            names.append("dtype")
        if self.first is None:
            names.append("device")
        return names

    def normalize(self) -> list[str]:
        """Statements that bring inputs into a layout that the library reads."""
        lines = []
        for a in self.tensors:
            n = python_name(a.name)
            test = f"{n} is not None and " if a.optional else ""
            if a.type == "i32":
                lines.append(f"if {test}{n}.dtype is not torch.int32: {n} = _indices({n})")
            dense = a.dense or len(a.dims) == 1
            if a.blocks:
                lines.append(f"if {test}{n}.stride(-1) != 1: {n} = {n}.contiguous()")
            else:
                lines.append(f"if {test}not {n}.is_contiguous(): {n} = _compact({n}, {dense})")
        return lines


def _present(o: Argument, row: Row) -> str:
    """Under what condition an optional output can be there at all."""
    return f" and {python_name(o.needs)} is not None" if o.needs and any(a.name == o.needs for a in row.op.inputs) else ""


def _raw(row: Row) -> str:
    op = row.op
    lines = [f"def {op.name}_raw({', '.join(row.raw_parameters())}):"]
    body = row.normalize()
    for o in op.outputs:
        n = python_name(o.name)
        if not o.optional:
            body.append(f"if {n} is None: {n} = {row.allocate(o)}")
        elif is_given(o):
            continue
        else:
            body.append(f"if {n} is True: {n} = {row.allocate(o)} if True{_present(o, row)} else None")
            body.append(f"elif {n} is False: {n} = None")
    values = [python_name(a.name) for a in (*op.inputs, *op.outputs)]
    values += [python_name(a.name) + "_d" for a in row.plans]
    lists = {INTS: "_ints({})", FLOATS: "_floats({})"}
    values += [lists.get(a.kind, "{}").format(python_name(a.name)) for a in op.attributes]
    if op.num_optional:
        values.append("None")
    body.append(f"{op.name}_entry({', '.join(values)})")
    body.append(f"return {', '.join(python_name(o.name) for o in op.outputs)}")
    return "\n".join([*lines, *("    " + b for b in body)]) + "\n"


def _uses(row: Row) -> list[str]:
    """A plan is used on another stream than the one that it was made on."""
    names = [(python_name(a.name), f"{python_name(a.name)} is not None and " if a.optional else "") for a in row.plans]
    return [f"if {test}{n}.stream is not None and {n}.stream != current_stream({n}.device.index): {n}.use()" for n, test in names]


# ---- Gradients ------------------------------------------------------------------------------------


def _backward_body(row: Row, positions: dict[str, int], eager: bool, total: int) -> list[str]:
    """Statements that compute the gradients, from ctx, what was saved and the gradients of outputs."""
    op, g, back = row.op, row.op.gradient, Row(row.backward)
    lines, args = [], {}
    for b in back.op.inputs:
        n, given = python_name(b.name), b.name in g.arguments
        if b.kind == PLAN:
            args[b.name] = (f"ctx.{n}.handle", f"ctx.{n}.ints", f"ctx.{n}.description") if eager else (n, f"ctx.{n}_f")
        elif not given:
            args[b.name] = ("None",)
        elif b.name.startswith("grad_"):
            source = "grad_" + python_name(op.outputs[0].name if b.name == "grad_sum" else b.name[5:])
            like = next((python_name(a.name) for a in row.bound.get(b.type, []) if not a.optional), None)
            if like:
                lines.append(f"if {source}.dtype is not {like}.dtype: {source} = {source}.to({like}.dtype)")
            args[b.name] = (source,)
        else:
            args[b.name] = (n,)
    lines.append("needs = ctx.needs_input_grad")
    wants = []
    for o, x in zip(back.op.outputs, g.inputs):
        wants.append(f"needs[{positions[x]}]" if o.optional else ("None" if eager else ""))
    call = [v for b in back.op.inputs for v in args[b.name]] + [w for w in wants if w]
    for a in back.op.attributes:
        call.append(f"ctx.{python_name(a.name)}")
    if back.free:
        call.append("None")
    target = f"{back.op.name}_raw" if eager else f"{back.op.name}_op"
    results = [f"g_{python_name(x)}" for x in g.inputs]
    lines.append(f"{', '.join(results)}{'' if len(results) > 1 else ''} = {target}({', '.join(call)})")
    grads = {}
    for x, r in zip(g.inputs, results):
        grads[x] = f"(_shaped({r}, {python_name(x)}) if needs[{positions[x]}] else None)"
    by_place = {positions[x]: t for x, t in grads.items()}
    lines.append("return " + ", ".join(by_place.get(i, "None") for i in range(total)))
    return lines


def _saved(row: Row) -> list[str]:
    """Tensors that the gradient reads, or whose shape it takes."""
    g = row.op.gradient
    names = [a.name for a in row.op.inputs if a.kind == TENSOR and (a.name in g.arguments or a.name in g.inputs)]
    return [python_name(n) for n in names + [o.name for o in row.op.outputs if o.name in g.arguments]]


def _function(row: Row) -> str:
    """The autograd.Function of an eager call."""
    op = row.op
    parameters = [python_name(a.name) for a in op.inputs]
    optional = [o for o in op.outputs if o.optional]
    parameters += [python_name(o.name) for o in optional]
    parameters += [python_name(a.name) for a in (*op.attributes, *row.extra)]
    if row.free:
        parameters.append("dtype")
    positions = {a.name: i for i, a in enumerate(op.inputs)}
    raw = []
    for a in op.inputs:
        n = python_name(a.name)
        raw += [f"{n}.handle", f"{n}.ints", f"{n}.description"] if a.kind == PLAN else [n]
    raw += [python_name(o.name) if o.optional else "None" for o in op.outputs]
    raw += [python_name(a.name) for a in op.attributes] + (["dtype"] if row.free else [])
    outs = [python_name(o.name) for o in op.outputs]
    saved = _saved(row)
    lines = [f"class {op.name}_grad(Function):", "    @staticmethod", f"    def forward(ctx, {', '.join(parameters)}):"]
    lines += ["        " + u for u in _uses(row)]
    lines.append(f"        {', '.join(outs)} = {op.name}_raw({', '.join(raw)})")
    lines.append(f"        ctx.save_for_backward({', '.join(saved)})")
    for a in row.plans:
        lines.append(f"        ctx.{python_name(a.name)} = {python_name(a.name)}")
    for a in row.backward.attributes:
        lines.append(f"        ctx.{python_name(a.name)} = {python_name(a.name)}")
    if len(outs) > 1:
        lines.append(f"        ctx.mark_non_differentiable(*[o for o in ({', '.join(outs[1:])},) if o is not None])")
    lines.append(f"        return {', '.join(outs)}")
    lines += ["    @staticmethod", "    @once_differentiable", f"    def backward(ctx, {', '.join('grad_' + o for o in outs)}):"]
    lines.append(f"        {', '.join(saved)}{',' if len(saved) == 1 else ''} = ctx.saved_tensors")
    lines += ["        " + b for b in _backward_body(row, positions, True, len(parameters))]
    return "\n".join(lines) + "\n"


# ---- torch.library --------------------------------------------------------------------------------


def _schema(row: Row) -> list[tuple[str, str]]:
    """Parameters of spops::NAME: (type, name)."""
    op, types = row.op, []
    for a in op.inputs:
        n = python_name(a.name)
        types.append((f"Tensor{'?' if a.optional else ''}", n))
        if a.kind == PLAN:
            types.append(("SymInt[]", n + "_f"))
    for i, o in enumerate(op.outputs):
        if o.optional:
            types.append((f"Tensor({chr(97 + i)}!)?" if is_given(o) else "bool", python_name(o.name)))
    by_kind = {INT: "int", FLOAT: "float", ENUM: "int", FLAGS: "int", INTS: "int[]?", FLOATS: "float[]?"}
    for a in (*op.attributes, *row.extra):
        types.append(("bool" if a.type == "bool" else by_kind[a.kind], python_name(a.name)))
    if row.free:
        types.append(("ScalarType?", "dtype"))
    if row.first is None:
        types.append(("Device?", "device"))
    return types


def _given(row: Row) -> list[Argument]:
    """Outputs that an operator returns: all but those that the caller gives."""
    return [o for o in row.op.outputs if not is_given(o)]


def _operator(row: Row) -> str:
    op, types = row.op, _schema(row)
    names = [n for _, n in types]
    returned = _given(row)
    raw = []
    for a in op.inputs:
        n = python_name(a.name)
        raw += [n + "_h", n + "_f", n + "_d"] if a.kind == PLAN else [n]
    raw += [python_name(o.name) if o.optional else "None" for o in op.outputs]
    raw += [python_name(a.name) for a in op.attributes]
    raw += (["dtype"] if row.free else []) + (["device"] if row.first is None else [])
    outs = [python_name(o.name) for o in op.outputs]
    none = f"{row.first}.new_empty((0,))" if row.first else "torch.empty(0)"
    ret = "return " + ", ".join(f"({n} if {n} is not None else {none})" if o.optional else n for o, n in ((o, python_name(o.name)) for o in returned))
    lines = [f"def {op.name}_impl({', '.join(names)}):"]
    on_cuda = f"{row.first}.is_cuda" if row.first else "device is not None and device.type == 'cuda'"
    if row.plans:
        lines.append(f"    if {on_cuda}:")
        lines += [f"        _use({python_name(a.name)})" for a in row.plans]
        lines += [f"    {n}_h, {n}_d = _plan_of({n}, {n}_f)" for n in (python_name(a.name) for a in row.plans)]
    lines.append(f"    {', '.join(outs)} = {op.name}_raw({', '.join(raw)})")
    lines.append(f"    {ret}")
    lines.append(f"def {op.name}_fake({', '.join(names)}):")
    for o in returned:
        n = python_name(o.name)
        if o.optional:
            lines.append(f"    {n} = {row.allocate(o, True)} if {n}{_present(o, row)} else None")
        else:
            lines.append(f"    {n} = {row.allocate(o, True)}")
    lines.append(f"    {ret}")
    if row.backward is not None:
        lines += _registered(row, names)
    return "\n".join(lines) + "\n"


def _registered(row: Row, names: list[str]) -> list[str]:
    """setup_context and backward of spops::NAME."""
    op = row.op
    outs = [python_name(o.name) for o in _given(row)]
    saved = _saved(row) + [python_name(a.name) for a in row.plans]
    lines = [f"def {op.name}_setup(ctx, inputs, output):"]
    lines.append(f"    {', '.join(names)}{',' if len(names) == 1 else ''} = inputs")
    lines.append(f"    {', '.join(outs)} = output")
    lines.append(f"    ctx.save_for_backward({', '.join(saved)})")
    kept = [python_name(a.name) + "_f" for a in row.plans] + [python_name(a.name) for a in row.backward.attributes]
    lines += [f"    ctx.{n} = {n}" for n in kept]
    if len(outs) > 1:
        lines.append(f"    ctx.mark_non_differentiable({', '.join(outs[1:])})")
    lines.append(f"def {op.name}_backward_of(ctx, {', '.join('grad_' + o for o in outs)}):")
    lines.append(f"    {', '.join(saved)}{',' if len(saved) == 1 else ''} = ctx.saved_tensors")
    positions = {a.name: names.index(python_name(a.name)) for a in op.inputs}
    lines += ["    " + b for b in _backward_body(row, positions, False, len(names))]
    return lines


def _register(row: Row) -> None:
    op, space = row.op, vars(_made)
    returns = ["Tensor"] * len(_given(row))
    result = returns[0] if len(returns) == 1 else f"({', '.join(returns)})"
    library.define(f"{op.name}({', '.join(f'{t} {n}' for t, n in _schema(row))}) -> {result}")
    library.impl(op.name, space[f"{op.name}_impl"], "CompositeExplicitAutograd")
    torch.library.register_fake(f"spops::{op.name}", space[f"{op.name}_fake"], lib=library)
    torch.library.register_vmap(f"spops::{op.name}", _made.refuse_vmap(op.name), lib=library)
    if row.backward is not None:
        torch.library.register_autograd(
            f"spops::{op.name}", space[f"{op.name}_backward_of"], setup_context=space[f"{op.name}_setup"], lib=library
        )
    space[f"{op.name}_op"] = getattr(torch.ops.spops, op.name).default


# ---- What a user calls ----------------------------------------------------------------------------


def parameters(op: Operator) -> list[tuple[str, str, str]]:
    """Of the public function: (name, annotation, default, "" where there is none)."""
    row, out = Row(op), _signature.parameters(op, "Tensor")
    if not op.makes_plan:
        for o in op.outputs:
            if o.optional and not is_given(o):
                out.append((python_name(o.name), "Tensor | bool", repr(row.all_optional)))
            else:
                out.append((python_name(o.name), "Tensor | None", "None"))
    if row.free:
        out.append(("dtype", "torch.dtype | None", "None"))
    if row.is_placeless and op.makes_plan:
        out.append(("device", "torch.device | str | None", "None"))
    return out


def _head(op: Operator) -> str:
    return f"def {op.name}(" + ", ".join(n + (f"={d}" if d else "") for n, _, d in parameters(op)) + "):"


def _prepare(row: Row) -> list[str]:
    lines = []
    for a in (*row.op.attributes, *row.extra):
        n = python_name(a.name)
        if a.kind == ENUM:
            lines.append(f"{n} = {row.op.name}_{n}_numbers.get({n}, {n})")
        elif a.kind in (INTS, FLOATS) and not row.op.makes_plan:  # of torch's operator; the raw call has the library's
            lines.append(f"{n} = _list({n}, {'int' if a.kind == INTS else 'float'})")
        elif a.kind == INTS:
            lines.append(f"{n} = _ints({n})")
        elif a.kind == FLOATS:
            lines.append(f"{n} = _floats({n})")
    for a in row.plans:
        n = python_name(a.name)
        test = f"{n} is not None and " if a.optional else ""
        lines.append(f"if {test}type({n}) is not Plan: _not_a_plan({row.op.name!r}, {a.name!r}, {n}, {a.type!r})")
    for a in row.comms:
        n = python_name(a.name)
        test = f"{n} is not None and " if a.optional else ""
        lines.append(f"if {test}not isinstance({n}, Comm): raise TypeError(f'{row.op.name}: {a.name} is {{type({n}).__name__}}, expected a Comm')")
    return lines


def _maker(row: Row) -> str:
    op = row.op
    values, devices, keeps, descriptions = [], [], [], []
    for a in op.inputs:
        n = python_name(a.name)
        if a.kind == PLAN:
            values.append(f"{n}.handle" if not a.optional else f"(None if {n} is None else {n}.handle)")
            descriptions.append(f"{n}.description" if not a.optional else f"(None if {n} is None else {n}.description)")
            keeps.append(n)
        elif a.kind == COMM:
            values.append(f"{n}._open()" if not a.optional else f"(None if {n} is None else {n}._open())")
        else:
            values.append(n)
        if not a.optional:
            devices.append(f"{n}.device")
    (out,) = op.outputs
    values += ["None", *descriptions, "None"]
    values += [python_name(a.name) for a in op.attributes]
    if op.num_optional:
        values.append("None")
    keep = keeps if out.may_be or kinds[out.type].parents else []
    keep = keep + [python_name(a.name) for a in row.comms if not a.optional]  # one that may be left out is needed while it is made
    lines = [_head(op), *("    " + b for b in [*_prepare(row), *row.normalize(), *_uses(row)])]
    if row.required:
        lines.append(f"    handle = {op.name}_entry({', '.join(values)})")
    else:
        if not devices:
            lines.append("    device = torch.device('cpu' if device is None else device)")
        lines.append(f"    handle = call_on({devices[0] if devices else 'device'}, {op.name}_entry, {', '.join(values)})")
    device = devices[0] if devices else "_indexed(device)"
    given = "".join(n + ", " for n, _, _ in parameters(op))
    made = f"_recipe({op.name!r}, ({given}))"
    lines.append(f"    return Plan(handle.value, ({''.join(k + ', ' for k in keep)}), {bool(out.may_be)}, {device}, {made})")
    return "\n".join(lines) + "\n"


def _public(row: Row) -> str:
    op = row.op
    outs = [python_name(o.name) for o in op.outputs]
    lines = [_head(op), *("    " + b for b in _prepare(row))]
    is_cast = row.backward is not None and any(a.name == "math" for a in op.attributes)
    if is_cast:
        cast = [python_name(a.name) for a in row.tensors if "T" in a.type.split("|")]
        lines.append("    if _is_any_autocast_enabled():")
        lines += [f"        {n} = _autocast({n})" for n in cast]
    if row.backward is not None:
        tests = []
        for x in row.differentiable:
            n, a = python_name(x), next(a for a in op.inputs if a.name == x)
            tests.append(f"({n} is not None and {n}.requires_grad)" if a.optional else f"{n}.requires_grad")
        lines.append(f"    needs = ({' or '.join(tests)}) and torch.is_grad_enabled()")
    traced = f"_is_traced({row.first})" if row.first else "is_compiling()"

    def call(target: str, plan: str, grads: bool) -> str:
        values = []
        for a in op.inputs:
            n = python_name(a.name)
            if a.kind == TENSOR or plan == "plan":
                values.append(n)
            else:
                values += [f"{n}.{plan}", f"{n}.ints"] + ([f"{n}.description"] if plan == "handle" else [])
        for o in op.outputs:
            n = python_name(o.name)
            saved = grads and o.optional and o.name in op.gradient.arguments
            if o.optional:
                is_flag = plan != "handle" and not is_given(o)
                values.append("True" if saved else f"{n} is not False and {n} is not None" if is_flag else n)
            elif plan == "handle":
                values.append(n)
        values += [python_name(a.name) for a in op.attributes]
        if plan != "handle":
            values += [python_name(a.name) for a in row.extra]
        values += (["dtype"] if row.free else [])
        if row.first is None:
            values.append(f"{python_name(row.plans[0].name)}.device")
        return f"{target}({', '.join(values)})"

    def result(how: str, target: str, plan: str, grads: bool, indent: str) -> list[str]:
        """Return what the caller wanted of the outputs."""
        if len(outs) == 1 and not op.outputs[0].optional:
            return [f"{indent}return {call(target, plan, grads)}"]
        kept = [python_name(o.name) for o in (_given(row) if plan == "token" else op.outputs)]
        text = [f"{indent}{', '.join('r_' + k for k in kept)} = {call(target, plan, grads)}"]
        parts = []
        for o in op.outputs:
            n = python_name(o.name)
            if n not in kept:
                parts.append(f"(() if {n} is None else ({n},))")
            elif o.optional:
                parts.append(f"(() if {n} is False or {n} is None{' or ' + python_name(o.needs) + ' is None' if _present(o, row) else ''} else (r_{n},))")
            else:
                parts.append(f"(r_{n},)")
        text.append(f"{indent}return _unpacked({' + '.join(parts)})")
        return text

    if row.backward is not None:
        lines.append("    if needs:")
        for o in op.outputs:
            if not (o.optional and o.name in op.gradient.arguments) and not (o.updated and o.optional):
                n = python_name(o.name)
                lines.append(f"        if isinstance({n}, Tensor): _no_out({op.name!r}, {o.name!r})")
        if row.is_sum:
            layer = [n for n in ("scale", "shift", "residual") if any(a.name == n for a in op.inputs)]
            test = " or ".join([*(f"{n} is not None" for n in layer), "activation"])
            inner = [f"{python_name(a.name)}={python_name(a.name)}" for a in (*op.inputs, *op.attributes) if a.name not in layer and a.name not in ("activation", "activation_slope")]
            inner += ["dtype=dtype"] if row.free else []
            lines.append(f"        if {test}:")
            lines.append(f"            return _epilogue({op.name}({', '.join(inner)}), {', '.join(layer)}, activation, activation_slope)")
        lines.append(f"        if {traced}:")
        lines += result("op", f"{op.name}_op", "token", True, "            ")
        lines += result("grad", f"{op.name}_grad.apply", "plan", True, "        ")
    lines.append(f"    if {traced}:")
    for o in op.outputs:
        n = python_name(o.name)
        if not (o.updated and o.optional):
            lines.append(f"        if isinstance({n}, Tensor): _no_out({op.name!r}, {o.name!r})")
    lines += result("op", f"{op.name}_op", "token", False, "        ")
    lines += ["    " + u for u in _uses(row)]
    lines += result("raw", f"{op.name}_raw", "handle", False, "    ")
    return "\n".join(lines) + "\n"


def _doc(op: Operator) -> str:
    row = Row(op)
    more = [f"dtype : of {', '.join(o.name for o in row.free)}"] if row.free else []
    if row.is_placeless and op.makes_plan:
        more.append("device : where the plan shall be; default: the CPU")
    return "\n".join([
        _signature.documentation(op, parameters(op), more), "", "Raises", "------",
        "ValueError, NotImplementedError, MemoryError, RuntimeError: with the library's line.", "",
        "Notes", "-----", f"Calls ``{op.function}``; its contract is in the C header.",
    ])  # fmt: skip


def _make_all() -> dict[str, object]:
    space, public = vars(_made), {}
    rows = {name: Row(op) for name, op in operators.items()}
    text = []
    for name, row in rows.items():
        assert not row.comms or row.op.makes_plan, name  # operators of torch take tensors and plans
        space[f"{name}_entry"] = getattr(_made.module, name)
        for a in (*row.op.attributes, *row.extra):
            if a.kind == ENUM:
                space[f"{name}_{python_name(a.name)}_numbers"] = {v: i for i, v in enumerate(a.values)}
        code = _maker(row) if row.op.makes_plan else _raw(row) + _operator(row)
        if row.backward is not None:
            code += _function(row)
        if not row.op.makes_plan:
            code += _public(row)
        sources[name] = code
        text.append(code)
    whole, file = "\n".join(text), "<spops operators>"
    exec(compile(whole, file, "exec"), space)
    linecache.cache[file] = (len(whole), None, whole.splitlines(True), file)
    for name, row in rows.items():
        if not row.op.makes_plan:
            _register(row)
        f = space[name]
        f.__doc__ = _doc(row.op)
        if row.op.makes_plan:
            f = torch.compiler.disable(f, reason=f"spops.{name} makes a plan: make plans outside of compiled regions (spops.prepare makes those of a network)")
        public[name] = f
    return public


functions = _make_all()
