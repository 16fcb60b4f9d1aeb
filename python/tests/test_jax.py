# SPDX-License-Identifier: Apache-2.0
"""spops.jax: every row against PyTorch, gradients against jax.numpy, plans made inside of jit."""
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from test_rows import drawn  # noqa: E402

import spops  # noqa: E402
import spops.functional as F  # noqa: E402
import spops.jax as sj  # noqa: E402
from spops import _jax_calls, _rows, _signature  # noqa: E402
from spops._rows import TENSOR, of_tensors as operators  # noqa: E402
from spops._signature import python_name  # noqa: E402

HAS_GPU = any(d.platform != "cpu" for d in jax.devices())


@pytest.fixture(autouse=True)
def platform(device):
    """Arrays of a test lie where torch's do."""
    if device.type == "cuda" and not HAS_GPU:
        pytest.skip("JAX has no CUDA device")
    with jax.default_device(jax.devices("cpu" if device.type == "cpu" else "gpu")[0]):
        yield device.type


def of_torch(x):
    if not isinstance(x, torch.Tensor):
        return x
    x = x.detach().cpu()
    if x.dtype.itemsize == 1 and x.is_floating_point():
        return jnp.asarray(x.view(torch.uint8).numpy()).view(jnp.dtype(str(x.dtype).removeprefix("torch.")))
    return jnp.asarray(x.numpy())


def bits(x):
    """As numpy, floats of 8 bits as integers."""
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu()
        return (x.view(torch.uint8) if x.dtype.itemsize == 1 else x).numpy()
    return np.asarray(x.view(jnp.uint8) if x.dtype.itemsize == 1 else x)


def plan_of(kind):
    maker = next(o for o in operators.values() if o.makes_plan and o.outputs[0].type == kind)
    return getattr(sj, maker.name)(**of_row(maker, False))


def of_row(op, with_optional):
    """What test_rows draws for the row, as JAX takes it."""
    values = drawn(op, with_optional)
    values.pop("device", None)
    return {n: plan_of(v.kind) if isinstance(v, spops.Plan) else v if n == "dtype" else of_torch(v) for n, v in values.items()}


def outcome(f):
    try:
        return jax.block_until_ready(f()), None
    except (ValueError, TypeError, NotImplementedError, jax.errors.JaxRuntimeError) as e:
        return None, e


# of blocks: all candidates are taken at once, and no sizes are counted before (CUDA)
COUNTED = "counted", "max_tiles", "max_records", "max_sums", "max_members", "max_units"
OTHER_FIELDS = ("max_items", "coords_up"), *((field, "pointconv_plan") for field in COUNTED)


# A plan in a block may be walked in other pieces on CUDA, as its sizes are capacities there: two roundings apart.
ROUNDED = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.mark.parametrize("with_optional", [False, True])
@pytest.mark.parametrize("name", operators)
def test_row(name, with_optional, platform):
    op = operators[name]
    ours = drawn(op, with_optional)
    if any(getattr(v, "dtype", None) is torch.float64 for v in ours.values()):
        pytest.skip("JAX has no f64 by default")
    theirs = of_row(op, with_optional)
    if "dtype" in theirs:
        theirs["dtype"] = str(theirs["dtype"]).removeprefix("torch.")
    if op.makes_plan:
        counts = [o.name for o in op.inputs if o.needs == op.outputs[0].name]
        assert not counts or not with_optional or all(n in ours for n in counts)
        for n in counts:  # blocks alone take them
            ours.pop(n, None)
            theirs.pop(n, None)
        mine, error = outcome(lambda: getattr(F, name)(**ours))
        got, other = outcome(lambda: getattr(sj, name)(**theirs))
        if error is None and other is not None:
            assert name == "kernel_map_inverse" and "made by kernel_map_reserve" in str(other), other
            return
        assert (error is None) == (other is None), (error, other)
        if error is None:
            assert got.kind == mine.kind
            for field in _rows.kinds[mine.kind].fields:  # a set that is refilled takes all candidates at once
                assert got.field(field) == getattr(mine, field) or (field, name) in OTHER_FIELDS or field == "kind", field
        return
    flags = {python_name(o.name): True for o in op.outputs if o.optional and not _signature.is_given(o) and (with_optional or o.name.startswith("grad_"))}
    given = {o.name: torch.ones(8) for o in op.outputs if _signature.is_given(o) and with_optional}
    mine, error = outcome(lambda: getattr(F, name)(**ours, **flags, **{n: x.clone() for n, x in given.items()}))
    call = lambda **arrays: getattr(sj, name)(**{**theirs, **arrays}, **flags, **{n: of_torch(x) for n, x in given.items()})
    got, other = outcome(call)
    if error is not None:
        assert other is not None
        return
    assert other is None, other
    arrays = {n: v for n, v in theirs.items() if isinstance(v, jax.Array)}
    shapes = jax.eval_shape(call, **arrays)
    mine, got, shapes = (v if isinstance(v, tuple) else (v,) for v in (mine, got, shapes))
    assert len(mine) == len(got) == len(shapes)
    for m, g, s in zip(mine, got, shapes):
        assert m.shape == g.shape == s.shape and g.dtype == s.dtype
        assert str(m.dtype).removeprefix("torch.") == g.dtype.name
        if platform == "cuda" and m.dtype in ROUNDED and any(isinstance(v, spops.Plan) for v in ours.values()):
            np.testing.assert_allclose(m.detach().cpu().float().numpy(), np.asarray(g, np.float32), rtol=ROUNDED[m.dtype], atol=1e-6)
        else:
            np.testing.assert_array_equal(bits(m), bits(g))


def test_every_row_is_registered_in_both():
    """Names, order and defaults of parameters agree, but for outputs, which JAX always makes."""
    assert set(sj.__all__) == {"Level", "Plan", "levels", *operators} and set(operators) < set(F.__all__)
    for name, op in operators.items():
        torchs = dict(inspect.signature(getattr(getattr(F, name), "__wrapped__", getattr(F, name))).parameters)
        mine = inspect.signature(getattr(sj, name)).parameters
        outputs = {python_name(o.name) for o in op.outputs if o.kind == TENSOR and not o.optional}
        expected = [n for n in torchs if n not in outputs and n != "device"]
        assert list(mine) == expected, name
        for n in mine:
            assert mine[n].default == torchs[n].default, (name, n)
        assert op.doc in getattr(sj, name).__doc__ and op.function in getattr(sj, name).__doc__
        if not op.makes_plan:
            assert hasattr(torch.ops.spops, name)


# ---- Values and gradients -----------------------------------------------------------------------------


def grid_rows(n, shape=(12, 12, 12), batches=2, seed=1):
    flat = np.random.default_rng(seed).permutation(batches * np.prod(shape))[:n]
    return jnp.asarray(np.stack(np.unravel_index(flat, (batches, *shape)), 1), jnp.int32)


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng((seed, *shape)).normal(size=shape), jnp.float32)


def conv_inside(x, w, rows, max_pairs=None, **more):
    """A submanifold convolution whose plans are made where it runs."""
    asked = {} if max_pairs is None else dict(max_pairs=max_pairs)
    s = sj.coords(rows, lower=[0, 0, 0, 0], upper=[1, 11, 11, 11])
    return sj.sparseconv(x, w, sj.sparseconv_plan(sj.kernel_map(s, size=3, **asked), backward=True), **more)


def dense_conv(x, w, rows):
    grid = jnp.zeros((2, 12, 12, 12, x.shape[1])).at[tuple(rows.T)].set(x)
    k = w.reshape(3, 3, 3, *w.shape[1:])
    y = jax.lax.conv_general_dilated(grid, k, (1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC"), precision="highest")
    return y[tuple(rows.T)]


def assert_gradients(f, g, *args, rtol=1e-4):
    """f and g have the same values and gradients."""
    at, fixed = tuple(range(len(args))), draw(*jax.eval_shape(f, *args).shape, seed=9)
    (a, da), (b, db) = (jax.jit(jax.value_and_grad(lambda *v, h=h: (h(*v) ** 2 * fixed).sum(), at))(*args) for h in (f, g))
    np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * float(jnp.abs(fixed).sum()))
    for m, r in zip(da, db):
        np.testing.assert_allclose(m, r, rtol=rtol, atol=rtol * float(jnp.abs(r).max()))


@pytest.mark.parametrize("max_pairs", [None, 2000])
def test_a_convolution_with_its_plans_made_inside_of_jit(max_pairs):
    rows, x, w = grid_rows(200), draw(200, 8), draw(27, 8, 16) / 15
    assert_gradients(lambda x, w: conv_inside(x, w, rows, max_pairs), lambda x, w: dense_conv(x, w, rows), x, w)


@pytest.mark.parametrize("activation", ["none", "relu", "leaky_relu", "silu", "gelu", "gelu_tanh", "sigmoid"])
def test_what_follows_a_sum_has_gradients(activation):
    rows, x, w = grid_rows(200), draw(200, 8), draw(27, 8, 16) / 15
    after = [draw(16, seed=1), 1 + draw(16, seed=2) / 4, draw(16, seed=3), draw(200, 16)]
    act = {
        "none": lambda y: y, "relu": jax.nn.relu, "leaky_relu": lambda y: jax.nn.leaky_relu(y, 0.01), "silu": jax.nn.silu,
        "gelu": lambda y: jax.nn.gelu(y, approximate=False), "gelu_tanh": jax.nn.gelu, "sigmoid": jax.nn.sigmoid,
    }[activation]  # fmt: skip

    def mine(x, w, bias, scale, shift, residual):
        return conv_inside(x, w, rows, bias=bias, scale=scale, shift=shift, residual=residual, activation=activation)

    assert_gradients(mine, lambda x, w, b, s, t, r: act((dense_conv(x, w, rows) + b) * s + t + r), x, w, *after)
    y = jax.jit(mine)(x, w, *after)  # without a gradient it is one call
    np.testing.assert_allclose(y, act((dense_conv(x, w, rows) + after[0]) * after[1] + after[2] + after[3]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_reductions(reduce):
    keys, x = jnp.asarray(np.random.default_rng(0).integers(0, 20, 300), jnp.int32), draw(300, 6)

    def ref(x):
        how = {"max": jax.ops.segment_max, "min": jax.ops.segment_min}.get(reduce, jax.ops.segment_sum)
        y = how(x, keys, 20)
        return y / jax.ops.segment_sum(jnp.ones_like(x), keys, 20) if reduce == "mean" else y

    outside = sj.segments(keys, 20, num_rows=300, gradients="all")
    assert_gradients(lambda x: sj.segreduce(x, sj.segments(keys, 20, gradients="all"), reduce=reduce), ref, x)
    assert_gradients(lambda x: sj.segreduce(x, outside, reduce=reduce), ref, x)


def test_attention():
    offsets, heads = jnp.asarray([0, 40, 41, 96], jnp.int32), 4
    q, k, v = draw(96, 32), draw(96, 32, seed=1), draw(96, 32, seed=2)
    p = sj.patches(offsets, 96)

    def ref(q, k, v):
        parts = []
        for a, b in ((0, 40), (40, 41), (41, 96)):
            h = [t[a:b].reshape(b - a, heads, -1) for t in (q, k, v)]
            s = jnp.einsum("ihc,jhc->hij", h[0], h[1], precision="highest") / np.sqrt(8)
            parts.append(jnp.einsum("hij,jhc->ihc", jax.nn.softmax(s), h[2], precision="highest").reshape(b - a, 32))
        return jnp.concatenate(parts)

    assert_gradients(lambda q, k, v: sj.attention(q, k, v, p, heads=heads), ref, q, k, v, rtol=1e-3)
    o, lse = sj.attention(q, k, v, p, heads=heads, lse=True)
    assert o.shape == (96, 32) and lse.shape == (96, heads)


def test_norms():
    x, gamma, beta = draw(64, 12), 1 + draw(12) / 4, draw(12, seed=1)

    def layer(x, gamma, beta):
        c = x - x.mean(1, keepdims=True)
        return c / jnp.sqrt((c * c).mean(1, keepdims=True) + 1e-5) * gamma + beta

    assert_gradients(lambda *a: sj.layernorm(*a, epsilon=1e-5), layer, x, gamma, beta, rtol=1e-3)

    def batch(x, gamma, beta):
        c = x - x.mean(0)
        return c / jnp.sqrt((c * c).mean(0) + 1e-5) * gamma + beta

    def mine(x, gamma, beta):
        mean, var = sj.batchnorm_statistics(jax.lax.stop_gradient(x))
        return sj.batchnorm(x, mean, var, gamma, beta, epsilon=1e-5)

    assert_gradients(mine, batch, x, gamma, beta, rtol=1e-3)
    mean, var, rm, rv = sj.batchnorm_statistics(x, running_mean=jnp.zeros(12), running_var=jnp.ones(12), momentum=0.1)
    np.testing.assert_allclose(rm, 0.1 * x.mean(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_narrow_floats(dtype):
    rows, x, w = grid_rows(200), draw(200, 8), draw(27, 8, 16) / 15
    y = conv_inside(x.astype(dtype), w.astype(dtype), rows)
    assert y.dtype == dtype
    tolerance = 4e-3 if dtype == jnp.float16 else 4e-2
    np.testing.assert_allclose(y.astype(jnp.float32), dense_conv(x, w, rows), rtol=tolerance, atol=tolerance)
    g = jax.grad(lambda x: conv_inside(x, w.astype(dtype), rows).astype(jnp.float32).sum())(x.astype(dtype))
    assert g.dtype == dtype and bool(jnp.isfinite(g.astype(jnp.float32)).all())


# ---- Plans ----------------------------------------------------------------------------------------------


def test_one_program_serves_sets_of_every_size():
    """Capacities: rows behind those that count take no part, and come out as zeros."""
    traced = []

    @jax.jit
    def f(x, w, rows, num):
        traced.append(1)
        s = sj.coords(rows, num_rows=num, lower=[0, 0, 0, 0], upper=[1, 11, 11, 11])
        return sj.sparseconv(x, w, sj.sparseconv_plan(sj.kernel_map(s, size=3)))

    w = draw(27, 8, 16) / 15
    for n in (250, 1, 173):
        rows, x = grid_rows(n, seed=n), draw(n, 8)
        pad = 250 - n
        y = f(jnp.pad(x, ((0, pad), (0, 0)), constant_values=jnp.nan), w, jnp.pad(rows, ((0, pad), (0, 0))), jnp.full(1, n, jnp.int32))
        np.testing.assert_allclose(y[:n], dense_conv(x, w, rows), rtol=1e-4, atol=1e-4)
        assert not y[n:].any()
    assert len(traced) == 1


def test_plans_are_pytrees():
    rows, x, w = grid_rows(200), draw(200, 8), draw(27, 8, 16) / 15
    map = sj.kernel_map(sj.coords(rows), size=3)
    conv = sj.sparseconv_plan(map, backward=True)
    assert conv.num_taps == 27 and conv.num_in == 200 and "num_taps" in dir(conv) and map.size == [3, 3, 3, 0]
    leaves, tree = jax.tree.flatten(conv)
    assert len(leaves) == 1 and jax.tree.unflatten(tree, leaves).ints == conv.ints
    f = jax.jit(lambda x, conv: sj.sparseconv(x, w, conv))
    copied = jax.tree.map(lambda b: b + 0, conv)  # a block may lie anywhere
    np.testing.assert_array_equal(f(x, conv), f(x, copied))
    assert f._cache_size() == 1
    with pytest.raises(AttributeError, match="no field nothing"):
        conv.nothing


def test_strided_and_transposed_convolutions_inside_of_jit():
    """Down, and back by the transposed map between the same sets: what an inverse map gives."""
    rows, x, w = grid_rows(150), draw(150, 4), draw(8, 4, 6)

    @jax.jit
    def down_up(x, w, rows):
        s = sj.coords(rows, lower=[0, 0, 0, 0], upper=[1, 11, 11, 11])
        t = sj.coords_down(s, size=2, stride=2)
        down = sj.sparseconv_plan(sj.kernel_map(s, t, kind="convolution", size=2, stride=2))
        up = sj.sparseconv_plan(sj.kernel_map(t, s, kind="transposed", size=2, stride=2))
        y = sj.sparseconv(x, w, down)
        return y, sj.sparseconv(y, jnp.swapaxes(w, 1, 2), up), *sj.coords_rows(t)

    y, z, coarse, num = down_up(x, w, rows)
    places = {tuple(r): i for i, r in enumerate(np.asarray(coarse[: int(num[0])]))}
    up, back = np.zeros((len(places), 6)), np.zeros((150, 4))
    half = [(r[0], r[1] // 2, r[2] // 2, r[3] // 2) for r in np.asarray(rows)]
    taps = [int(4 * (r[1] % 2) + 2 * (r[2] % 2) + r[3] % 2) for r in np.asarray(rows)]
    for i, (h, k) in enumerate(zip(half, taps)):
        up[places[h]] += np.asarray(x[i] @ w[k])
    for i, (h, k) in enumerate(zip(half, taps)):
        back[i] = up[places[h]] @ np.asarray(w[k]).T
    assert set(half) == set(places)
    np.testing.assert_allclose(y[: len(places)], up, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(z, back, rtol=1e-4, atol=1e-4)


def test_voxels_and_back_inside_of_jit():
    points, feats = jnp.abs(draw(400, 3)), draw(400, 5)

    @jax.jit
    def f(points, feats):
        v = sj.voxels(points, size_m=0.5, lower=[0, 0, 0, 0], upper=[0, 15, 15, 15], gradients="linear", max_voxels=300)
        mean = sj.segreduce(feats, sj.voxels_segments(v), reduce="mean")
        d = sj.devoxels(points, sj.voxels_coords(v), size_m=0.5, gradients="linear")
        return sj.segreduce(mean, sj.devoxels_segments(d), w=sj.devoxels_weights(d))

    key = np.floor(np.asarray(points) / 0.5) @ [1, 100, 10000]
    ref = np.stack([np.asarray(feats)[key == k].mean(0) for k in key])
    np.testing.assert_allclose(f(points, feats), ref, rtol=1e-4, atol=1e-5)
    g = jax.grad(lambda v: (f(points, v) ** 2).sum())(feats)
    np.testing.assert_allclose(g, 2 * ref, rtol=1e-3, atol=1e-4)


# ---- Refusals -------------------------------------------------------------------------------------------


def test_errors_are_the_librarys():
    rows, x, w = grid_rows(200), draw(200, 8), draw(27, 8, 16)
    conv = sj.sparseconv_plan(sj.kernel_map(sj.coords(rows), size=3))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"sparseconv_execute: w is \[208, 16\], expected \[216, 16\]"):
        jax.block_until_ready(sj.sparseconv(x, w[:26], conv))
    with pytest.raises(ValueError, match=r'sparseconv: activation is "rel", expected none relu'):
        sj.sparseconv(x, w, conv, activation="rel")
    with pytest.raises(TypeError, match="sparseconv: conv is of type .*, expected a Plan of kind sparseconv"):
        sj.sparseconv(x, w, x)
    with pytest.raises(TypeError, match="sparseconv: conv is a Plan of kind coords, expected"):
        sj.sparseconv(x, w, sj.coords(rows))
    with pytest.raises(ValueError, match=r"keys\[1\] is 3"):
        sj.segments(jnp.asarray([0, 3]), 3)
    with pytest.raises(TypeError, match="coords: lower and upper are not given"):
        jax.jit(lambda r: sj.coords_rows(sj.coords(r)))(rows)
    with pytest.raises(TypeError, match="max_nothing is no argument, and no field of a plan of kind kernel_map"):
        sj.kernel_map(sj.coords(rows), max_nothing=3)
    with pytest.raises(TypeError, match="segments: keys is float32, expected int32"):
        sj.segments(draw(3), 3)


def test_calls_that_are_not_as_the_handler_reads_them():
    """The handler itself: what is missing, too short or of another type is named."""
    x, w = draw(4, 2), draw(2, 3)
    numbers = dict(w_transposed=np.int64(0), activation=np.int64(0), math=np.int64(0), activation_slope=np.float64(0))
    good = dict(_operator="linear", _present=np.int64(0), _descriptions=np.asarray([], np.int64), **numbers)

    def run(operands, **attributes):
        f = jax.ffi.ffi_call(_jax_calls.TARGET, [jax.ShapeDtypeStruct((4, 3), jnp.float32)])
        return jax.block_until_ready(f(*operands, **attributes))

    np.testing.assert_allclose(run((x, w), **good)[0], x @ w, rtol=1e-4, atol=1e-5)
    for change, message in (
        (dict(_operator="nothing"), "_operator is the name of no operator"),
        (dict(_operator="x" * 200), "_operator is the name of no operator"),
        (dict(_present=np.float64(0.5)), "_present and _descriptions are not there as numbers of 64 bits"),
        (dict(_descriptions=np.asarray([], np.int32)), "_present and _descriptions are not there as numbers of 64 bits"),
        (dict(math=np.float64(0.5)), "linear: math is not there as a number of 64 bits"),
        (dict(_present=np.int64(1)), "linear: there is no buffer for bias"),
        (dict(_present=np.int64(-1)), "linear: there is no buffer for bias"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            run((x, w), **{**good, **change})
    with pytest.raises(jax.errors.JaxRuntimeError, match="linear: there is no buffer for w"):
        run((x,), **good)
    with pytest.raises(jax.errors.JaxRuntimeError, match="linear: x is of a dtype that no operator takes"):
        run((x.astype(jnp.complex64), w), **good)
    p = sj.segments(jnp.asarray([0, 1, 0, 1]), 3)
    of_plan = dict(_operator="segreduce", _present=np.int64(0), reduce=np.int64(0))
    for ints in ([], [5, 1, 1], [-2], [2**62], [len(p.ints), *p.ints[:-1]]):
        with pytest.raises(jax.errors.JaxRuntimeError, match="segreduce: there is no description of segments"):
            run((x, p.block), _descriptions=np.asarray(ints, np.int64), **of_plan)
    with pytest.raises(jax.errors.JaxRuntimeError, match="num_ints is|expected"):
        run((x, p.block), _descriptions=np.asarray([len(p.ints) - 1, *p.ints[:-1]], np.int64), **of_plan)


def test_vmap_is_refused_with_a_sentence():
    x, w = draw(2, 30, 8), draw(8, 5)
    for f in (lambda x: sj.linear(x, w), jax.grad(lambda x: sj.linear(x, w).sum())):
        with pytest.raises(NotImplementedError, match=r"spops.jax.linear\w*: vmap is not supported: rows of several samples go into one call"):
            jax.vmap(f)(x)
    y = jax.lax.map(lambda x: sj.linear(x, w), x)
    np.testing.assert_allclose(y, jnp.matmul(x, w, precision="highest"), rtol=1e-4, atol=1e-4)


def test_works_without_torch():
    code = """if True:
        import sys
        sys.modules["torch"] = sys.modules["tvm_ffi"] = None
        import jax, jax.numpy as jnp, spops, spops.jax as sj
        x = jnp.arange(8.0).reshape(4, 2)
        f = lambda x: (sj.segreduce(x, sj.segments(jnp.asarray([0, 1, 0, 1]), 2, gradients="linear")) ** 2).sum()
        print(jax.jit(jax.grad(f))(x).tolist(), spops.__version__)
    """
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**__import__("os").environ, "JAX_PLATFORMS": "cpu"})
    assert out.returncode == 0, out.stderr
    assert out.stdout.startswith("[[8.0, 12.0], [16.0, 20.0], [8.0, 12.0], [16.0, 20.0]] "), out.stdout


def test_stub_is_of_the_list():
    from spops import _stubs

    path = Path(spops.__file__).with_name("jax.pyi")
    assert path.read_text() == _stubs.jax_text(), "python -m spops._stubs writes it again"


@pytest.mark.parametrize("inside", [False, True])
def test_levels_of_a_network(inside):
    """The same rows as torch's plans give, exact and with capacities."""
    rows = grid_rows(120)
    x, (wa, wd, wu) = draw(120, 8), (draw(27, 8, 8), draw(8, 8, 8), draw(8, 8, 8))

    def run(x, rows):
        capacities = dict(rows=(120, 110, 100), pairs_per_row=27) if inside else {}
        s = sj.coords(rows, lower=[0, 0, 0, 0], upper=[1, 11, 11, 11])
        a, b, c = sj.levels(s, 3, **capacities)
        assert c.down is None and c.up is None
        y = sj.sparseconv(sj.sparseconv(x, wa, a.within), wd, a.down)
        z = sj.sparseconv(sj.sparseconv(y, wa, b.within), wu, a.up)
        return z, b.num_rows, c.num_rows

    got, n1, n2 = (jax.jit(run) if inside else run)(x, rows)
    t = lambda a: torch.from_numpy(np.asarray(a)).to(torch.get_default_device())
    s = F.coords(t(rows), lower=[0, 0, 0, 0], upper=[1, 11, 11, 11])
    d = F.coords_down(s, size=2, stride=2, order="lexicographic")
    down, inner = F.kernel_map(s, d, kind="convolution", size=2, stride=2), F.kernel_map(d, size=3)
    plan = lambda m: F.sparseconv_plan(m)
    y = F.sparseconv(F.sparseconv(t(x), t(wa), plan(F.kernel_map(s, size=3))), t(wd), plan(down))
    z = F.sparseconv(F.sparseconv(y, t(wa), plan(inner)), t(wu), plan(F.kernel_map_inverse(down)))
    np.testing.assert_allclose(got, z.cpu(), rtol=1e-4, atol=1e-4)
    assert int(n1[0]) == d.max_rows and 0 < int(n2[0]) < int(n1[0])
