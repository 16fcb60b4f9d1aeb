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
from scans import CLASSES, IGNORED, VOXEL_M, Progress, Scans, print_scores

import spops.jax as sj

WIDTHS, LEVELS, LOGITS = (32, 32, 48, 64, 96), 5, 16  # 9 classes, padded
BOX = dict(lower=[0, -360, -360, -40], upper=[3, 360, 360, 120])  # of voxels: batch, x, y, z


def parameters(key):
    """{name: [taps, in, out], and gamma, beta}, and running statistics."""
    down = list(zip(WIDTHS, WIDTHS[1:]))
    convs = {"stem": (27, 8, WIDTHS[0]), "head": (27, WIDTHS[0], LOGITS)}
    convs.update({f"encode{i}": (27, w, w) for i, w in enumerate(WIDTHS)}, **{f"decode{i}": (27, w, w) for i, w in enumerate(WIDTHS[:-1])})
    convs.update({f"down{i}": (8, a, b) for i, (a, b) in enumerate(down)}, **{f"up{i}": (8, b, a) for i, (a, b) in enumerate(down)})
    keys = dict(zip(convs, jax.random.split(key, len(convs))))
    weights = {n: jax.random.normal(keys[n], s) * (2 / (s[0] * s[1])) ** 0.5 for n, s in convs.items()}
    normed = {n: s[2] for n, s in convs.items() if n != "head" and not n.startswith("up")}
    norms = {n: (jnp.ones(c), jnp.zeros(c)) for n, c in normed.items()}
    return (weights, norms), {n: (jnp.zeros(c), jnp.ones(c)) for n, c in normed.items()}


def plans_of(points, scan, num_points, rows):
    """Voxels, the plans of all levels, how many rows each has, and the way back to the points."""
    v = sj.voxels(points, batch=scan, num_points=num_points, size_m=VOXEL_M, max_voxels=rows[0], max_cols=32, order="lexicographic", **BOX)
    sets, counts, within, down, up = [sj.voxels_coords(v)], [], [], [], []
    for level in range(LEVELS):
        pairs = dict(max_pairs=12 * rows[level])
        within.append(sj.sparseconv_plan(sj.kernel_map(sets[level], size=3, **pairs), backward=True))
        counts.append(sj.coords_rows(sets[level])[1])
        if level + 1 < LEVELS:
            sets.append(sj.coords_down(sets[level], size=2, stride=2, max_rows=rows[level + 1], order="lexicographic"))
            map = functools.partial(sj.kernel_map, size=2, stride=2, max_pairs=rows[level])
            down.append(sj.sparseconv_plan(map(sets[level], sets[level + 1], kind="convolution"), backward=True))
            up.append(sj.sparseconv_plan(map(sets[level + 1], sets[level], kind="transposed"), backward=True))
    back = sj.devoxels(points, sets[0], batch=scan, num_points=num_points, size_m=VOXEL_M, interpolation="linear", missing="rescale", gradients="linear")
    return sj.voxels_segments(v), within, down, up, counts, back


def network(params, statistics, batch, rows, dtype, training):
    """Logits of points, and the running statistics afterwards."""
    (weights, norms), (points, scan, feats, num_points), after = params, batch, dict(statistics)
    voxels, within, down, up, counts, back = plans_of(points, scan, num_points, rows)

    def layer(name, x, plan, level):
        x = sj.sparseconv(x, weights[name].astype(dtype), plan)
        if name not in norms:
            return x
        mean, var, n = *statistics[name], counts[level]
        if training:
            running = dict(zip(("running_mean", "running_var"), statistics[name]))
            mean, var, *after[name] = sj.batchnorm_statistics(jax.lax.stop_gradient(x), num_rows=n, momentum=0.05, **running)
            after[name] = tuple(after[name])
        return sj.batchnorm(x, mean, var, *norms[name], num_rows=n, epsilon=1e-5, activation="relu", fixed_statistics=not training)

    x, skips = layer("stem", sj.segreduce(feats.astype(dtype), voxels, reduce="mean"), within[0], 0), []
    for i in range(LEVELS - 1):
        skips.append(layer(f"encode{i}", x, within[i], i))
        x = layer(f"down{i}", skips[i], down[i], i + 1)
    x = layer(f"encode{LEVELS - 1}", x, within[-1], LEVELS - 1)
    for i in reversed(range(LEVELS - 1)):
        x = layer(f"decode{i}", layer(f"up{i}", x, up[i], i) + skips[i], within[i], i)
    x = layer("head", x, within[0], 0)
    return sj.segreduce(x, sj.devoxels_segments(back), w=sj.devoxels_weights(back))[:, : len(CLASSES)].astype(jnp.float32), after


def loss_of(params, statistics, batch, classes, weights, rows, dtype):
    logits, after = network(params, statistics, batch, rows, dtype, True)
    w = weights[classes]
    each = jnp.where(w > 0, -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.minimum(classes, len(CLASSES) - 1)[:, None], 1)[:, 0], 0)
    return (w * each).sum() / w.sum(), (after, confusion_of(logits, classes))


def confusion_of(logits, classes):
    """Points of class i that are said to be of class j; ignored ones are in a row of their own."""
    n = len(CLASSES)
    return jnp.zeros((n + 1, n), jnp.int32).at[classes, logits.argmax(1)].add(1)[:n]


@functools.partial(jax.jit, static_argnames=("rows", "steps", "rate", "dtype"), donate_argnums=(0,))
def step_of(state, at, batch, classes, weights, rows, steps, rate, dtype):
    params, statistics, m, v = state
    (loss, (statistics, confusion)), g = jax.value_and_grad(loss_of, has_aux=True)(params, statistics, batch, classes, weights, rows, dtype)
    rising = steps // 20 + 1
    now = rate * jnp.where(at < rising, (at + 1) / rising, 0.5 + 0.5 * jnp.cos(jnp.pi * (at - rising) / (steps - rising + 1)))
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
    move = lambda p, m, v: p - now * (m / (1 - 0.9 ** (at + 1)) / (jnp.sqrt(v / (1 - 0.999 ** (at + 1))) + 1e-8) + 0.01 * p * (p.ndim > 1))
    return (jax.tree.map(move, params, m, v), statistics, m, v), loss, confusion


def padded(batch, most):
    """(points, scan, features, how many count), classes: arrays of `most` points; those behind are ignored."""
    points, scan, feats, classes = batch
    n, classes = len(points), np.where(classes == IGNORED, len(CLASSES), classes).astype(np.int32)
    pad = lambda a, value=0: np.concatenate([a, np.full((most - n, *a.shape[1:]), value, a.dtype)])
    return (pad(points), pad(scan), pad(feats), np.full(1, n, np.int32)), pad(classes, len(CLASSES))


def capacities(most):
    """Rows of the levels, for so many points."""
    return tuple(int(most * share) for share in (0.6, 0.35, 0.2, 0.1, 0.05))


def train(scans, steps, rate=0.003, curve=None, seed=1):
    most = 2 * max(len(c) for _, c in scans.scans)
    params, statistics = parameters(jax.random.key(seed))
    state = params, statistics, *(jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    weights = jnp.asarray([*scans.class_weights(), 0.0])
    how = dict(rows=capacities(most), steps=steps, rate=rate, dtype=jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)
    progress, losses, confusion = Progress(steps), [], 0
    for step, batch in scans.batches(steps):
        state, loss, said = step_of(state, step, *padded(batch, most), weights, **how)
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
    label = jax.jit(lambda batch: network(*state[:2], batch, capacities(most), jnp.float32, False)[0])
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
