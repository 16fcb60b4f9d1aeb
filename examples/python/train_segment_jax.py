# SPDX-License-Identifier: Apache-2.0
"""The network of examples/segment in plain JAX: a sparse U-Net that labels the points of LiDAR scans.

    spops scan --out scans --count 200 --seed 1; spops scan --out tests --count 50 --seed 1000001
    python train_segment_jax.py scans tests [--steps 1500] [--curve curve.svg]

A step is one program, the plans of all levels included: their sizes are capacities, so that it is
compiled once for scans of every size. Features and products are bf16 on a GPU; statistics,
parameters and their gradients are f32.
"""
import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax_tools import adamw, confusion_of, he_normal, norm_relu, padded
from scans import CLASSES, VOXEL_M, Progress, Scans, print_scores

import spops.jax as sj

WIDTHS, LOGITS = (32, 32, 48, 64, 96), 16  # 9 classes, padded
SHARES = (0.6, 0.35, 0.2, 0.1, 0.05)  # rows of the levels, at most, of all points
BOX = dict(lower=[0, -360, -360, -40], upper=[3, 360, 360, 120])  # of voxels: batch, x, y, z


def parameters(key):
    """{name: [taps, in, out]}, {name: gamma, beta}, and running statistics."""
    down = list(enumerate(zip(WIDTHS, WIDTHS[1:])))
    shapes = {"stem": (27, 8, WIDTHS[0]), "head": (27, WIDTHS[0], LOGITS)}
    shapes |= {f"encode{i}": (27, w, w) for i, w in enumerate(WIDTHS)} | {f"decode{i}": (27, w, w) for i, w in enumerate(WIDTHS[:-1])}
    shapes |= {f"down{i}": (8, a, b) for i, (a, b) in down} | {f"up{i}": (8, b, a) for i, (a, b) in down}
    normed = {n: s[2] for n, s in shapes.items() if n != "head" and not n.startswith("up")}
    norms = {n: (jnp.ones(c), jnp.zeros(c)) for n, c in normed.items()}
    return (he_normal(key, shapes), norms), {n: (jnp.zeros(c), jnp.ones(c)) for n, c in normed.items()}


def network(params, statistics, points, scan, feats, num_points, dtype, training):
    """Logits of points, and the running statistics afterwards."""
    (weights, norms), after, rows = params, {}, [int(len(points) * s) for s in SHARES]
    of_points = dict(batch=scan, num_points=num_points, size_m=VOXEL_M)
    v = sj.voxels(points, **of_points, max_voxels=rows[0], max_cols=32, order="lexicographic", **BOX)
    levels = sj.levels(sj.voxels_coords(v), len(WIDTHS), rows=rows, pairs_per_row=12)

    def layer(name, x, plan, at):
        x = sj.sparseconv(x, weights[name].astype(dtype), plan)
        if name in norms:
            x, after[name] = norm_relu(x, norms[name], statistics[name], at.num_rows, training)
        return x

    x, skips = layer("stem", sj.segreduce(feats.astype(dtype), sj.voxels_segments(v), reduce="mean"), levels[0].within, levels[0]), []
    for i, (l, below) in enumerate(zip(levels, levels[1:])):
        skips.append(layer(f"encode{i}", x, l.within, l))
        x = layer(f"down{i}", skips[i], l.down, below)
    x = layer(f"encode{len(skips)}", x, levels[-1].within, levels[-1])
    for i, l in reversed(list(enumerate(levels[:-1]))):
        x = layer(f"decode{i}", layer(f"up{i}", x, l.up, l) + skips[i], l.within, l)
    back = sj.devoxels(points, levels[0].coords, **of_points, interpolation="linear", missing="rescale", gradients="linear")
    x = sj.segreduce(layer("head", x, levels[0].within, l), sj.devoxels_segments(back), w=sj.devoxels_weights(back))
    return x[:, : len(CLASSES)].astype(jnp.float32), after


def loss_of(params, statistics, batch, classes, weights, dtype):
    logits, after = network(params, statistics, *batch, dtype, True)
    w, kept = weights[classes], jnp.minimum(classes, len(CLASSES) - 1)
    each = -jnp.take_along_axis(jax.nn.log_softmax(logits), kept[:, None], 1)[:, 0]
    return jnp.where(w > 0, w * each, 0).sum() / w.sum(), (after, confusion_of(logits, classes))


@functools.partial(jax.jit, static_argnames=("steps", "rate", "dtype"), donate_argnums=(0,))
def step_of(state, at, batch, classes, weights, steps, rate, dtype):
    params, statistics, moments = state
    (loss, (statistics, said)), g = jax.value_and_grad(loss_of, has_aux=True)(params, statistics, batch, classes, weights, dtype)
    params, moments = adamw(params, moments, g, at, steps, rate)
    return (params, statistics, moments), loss, said


def train(scans, steps, rate=0.003, curve=None, seed=1):
    most = 2 * max(len(c) for _, c in scans.scans)
    params, statistics = parameters(jax.random.key(seed))
    state = params, statistics, tuple(jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    weights = jnp.asarray([*scans.class_weights(), 0.0])
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    progress, losses, confusion = Progress(steps), [], 0
    for step, batch in scans.batches(steps):
        state, loss, said = step_of(state, step, *padded(batch, most), weights, steps, rate, dtype)
        losses.append(loss)
        confusion = confusion + said
        if progress.is_due(step):
            progress.show(step, np.asarray(jnp.stack(losses)), np.asarray(confusion))
            losses, confusion = [], 0
    if curve:
        progress.draw(curve)
    return state, [v for _, v in progress.losses]


def test(state, scans):
    most = max(len(c) for _, c in scans.scans)
    label = jax.jit(lambda batch: network(*state[:2], *batch, jnp.float32, False)[0])
    confusion = 0
    for batch in scans:
        batch, classes = padded(batch, most)
        confusion = confusion + confusion_of(label(batch), classes)
    return print_scores(np.asarray(confusion))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("train_scans")
    parser.add_argument("test_scans")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--curve", default="curve.svg")
    args = parser.parse_args()
    state, _ = train(Scans(args.train_scans), args.steps, curve=args.curve)
    test(state, Scans(args.test_scans))
