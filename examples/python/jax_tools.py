# SPDX-License-Identifier: Apache-2.0
"""What training in JAX needs besides a network and its loop: a norm, first weights, AdamW, batches of one size."""
import jax
import jax.numpy as jnp
import numpy as np
from scans import CLASSES, IGNORED

import spops.jax as sj


def he_normal(key, shapes):
    """{name: [taps, in, out]} of He-normal numbers."""
    keys = jax.random.split(key, len(shapes))
    return {n: jax.random.normal(k, s) * (2 / (s[0] * s[1])) ** 0.5 for k, (n, s) in zip(keys, shapes.items())}


def norm_relu(x, factors, statistics, num_rows, training):
    """Batch norm and ReLU of the rows in use, and the running statistics afterwards; factors: gamma, beta."""
    mean, var = statistics
    if training:
        running = dict(running_mean=mean, running_var=var)
        mean, var, *statistics = sj.batchnorm_statistics(jax.lax.stop_gradient(x), num_rows=num_rows, momentum=0.05, **running)
    y = sj.batchnorm(x, mean, var, *factors, num_rows=num_rows, epsilon=1e-5, activation="relu", fixed_statistics=not training)
    return y, tuple(statistics)


def adamw(params, moments, g, at, steps, rate):
    """Parameters and moments after step `at`; the rate rises over a twentieth of the steps and falls along a cosine."""
    rising = steps // 20 + 1
    now = rate * jnp.where(at < rising, (at + 1) / rising, 0.5 + 0.5 * jnp.cos(jnp.pi * (at - rising) / (steps - rising + 1)))
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], g)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], g)
    move = lambda p, m, v: p - now * (m / (1 - 0.9 ** (at + 1)) / (jnp.sqrt(v / (1 - 0.999 ** (at + 1))) + 1e-8) + 0.01 * p * (p.ndim > 1))
    return jax.tree.map(move, params, m, v), (m, v)


def padded(batch, most):
    """(points, scan, features, how many count), classes: arrays of `most` points; those behind are ignored."""
    points, scan, feats, classes = batch
    n, classes = len(points), np.where(classes == IGNORED, len(CLASSES), classes).astype(np.int32)
    pad = lambda a, value=0: np.concatenate([a, np.full((most - n, *a.shape[1:]), value, a.dtype)])
    return (pad(points), pad(scan), pad(feats), np.full(1, n, np.int32)), pad(classes, len(CLASSES))


def confusion_of(logits, classes):
    """Points of class i that are said to be of class j; ignored ones are in a row of their own."""
    n = len(CLASSES)
    return jnp.zeros((n + 1, n), jnp.int32).at[classes, logits.argmax(1)].add(1)[:n]
