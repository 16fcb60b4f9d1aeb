# SPDX-License-Identifier: Apache-2.0
"""Labelled LiDAR scans as `spops scan` writes them, for train_segment.py and train_segment_jax.py: NumPy alone.

Classes, features of points, changes and scores are those of examples/segment (docs/training.md).
"""
from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

CLASSES = ("road", "pavement", "grass", "building", "wall", "vehicle", "pole", "tree", "person")
IGNORED = 255
CLASS_OF = np.array([IGNORED, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8], np.uint8)  # of a label
VOXEL_M = 0.2


class Scans:
    """All scans of a folder: points f32 [N, 4] (x, y, z in m, intensity), classes u8 [N]."""

    def __init__(self, folder):
        self.scans = []
        for path in sorted(p for p in Path(folder).glob("scan_*.npy") if not p.stem.endswith("_labels")):
            points, labels = np.load(path), np.load(path.with_name(path.stem + "_labels.npy"))
            seen = (np.hypot(points[:, 0], points[:, 1]) <= 60) & (points[:, 2] >= -5) & (points[:, 2] <= 20)
            self.scans.append((points[seen], CLASS_OF[labels[seen]]))
        if not self.scans:
            raise FileNotFoundError(f"{folder}: no scan_*.npy in it")

    def __len__(self):
        return len(self.scans)

    def __iter__(self):
        return ((points[:, :3], np.zeros(len(points), np.int32), features(points[:, :3], points[:, 3]), classes) for points, classes in self.scans)

    def class_weights(self):
        """f32 [classes]: inverse square roots of shares of the points, of mean 1 over the points."""
        n = sum(np.bincount(c, minlength=256)[: len(CLASSES)] for _, c in self.scans).astype(np.float64)
        w = np.where(n > 0, 1 / np.sqrt(np.maximum(n, 1)), 0)
        return (w * n.sum() / (w * n).sum()).astype(np.float32)

    def batches(self, steps, threads=8):
        """(step, what batch(step) gives) for all steps; those to come are made meanwhile."""
        with ThreadPoolExecutor(threads) as pool:
            ahead = [pool.submit(self.batch, step) for step in range(min(steps, 2 * threads))]
            for step in range(steps):
                if step + len(ahead) < steps:
                    ahead.append(pool.submit(self.batch, step + len(ahead)))
                yield step, ahead.pop(0).result()

    def batch(self, step, together=2, seed=1):
        """points f32 [N, 3], number of the scan i32 [N], features f32 [N, 8], classes u8 [N] of a step."""
        parts = []
        for i in range(together):
            at, of = divmod(step * together + i, len(self))
            order = np.random.default_rng((seed, at)).permutation(len(self))
            parts.append(changed(*self.scans[order[of]], np.random.default_rng((seed, at, of))))
        batch = np.repeat(np.arange(together, dtype=np.int32), [len(p[0]) for p in parts])
        points, feats, classes = (np.concatenate([p[k] for p in parts]) for k in range(3))
        return points, batch, feats, classes


def changed(points, classes, dice):
    """A scan turned, mirrored, scaled, raised and thinned: points, features, classes."""
    keep = dice.random(len(points)) < (dice.uniform(0.5, 1) if dice.random() < 0.3 else 1)
    p, angle, scale = points[keep], dice.uniform(0, 2 * np.pi), dice.uniform(0.95, 1.05)
    cosine, sine, mirror = np.cos(angle), np.sin(angle), dice.choice([-1, 1])
    turn = scale * np.array([[cosine, -sine * mirror, 0], [sine, cosine * mirror, 0], [0, 0, 1]], np.float32)
    moved = p[:, :3] @ turn.T + np.array([0, 0, dice.uniform(-0.1, 0.1)], np.float32)
    return moved, features(moved, p[:, 3]), classes[keep]


def features(p, intensity):
    """Eight of a point, of about the size of 1: f32 [N, 8]."""
    r = np.sqrt(np.einsum("ij,ij->i", p, p))
    out = np.ones((len(p), 8), np.float32)
    out[:, 1], out[:, 2], out[:, 3] = 0.5 * (p[:, 2] + 1), 2 * intensity, r / 20 - 1
    v = p / np.float32(VOXEL_M)
    out[:, 4:7] = 2 * (v - np.floor(v)) - 1
    out[:, 7] = 4 * p[:, 2] / np.maximum(r, 1e-6)
    return out


def iou(confusion):
    """Intersection over union of each class, from [true, said]; NaN where a class is not there."""
    c = np.asarray(confusion, np.float64)
    there = c.sum(1) > 0
    return np.where(there, np.diag(c) / np.maximum(c.sum(0) + c.sum(1) - np.diag(c), 1), np.nan)


def print_scores(confusion):
    """Mean IoU, which is returned, and that of each class."""
    each = iou(confusion)
    right = np.trace(confusion) / max(np.sum(confusion), 1)
    print(f"mean IoU {np.nanmean(each):.3f}, {100 * right:.1f} % of the points right")
    print("  ".join(f"{name} {v:.3f}" for name, v in zip(CLASSES, each)))
    return float(np.nanmean(each))


class Progress:
    """A bar on a terminal, else a line every so many steps; keeps what the curve is drawn from."""

    def __init__(self, steps, every=25):
        self.steps, self.every, self.begin = steps, every, time.perf_counter()
        self.losses, self.ious = [], []  # (step, value)

    def is_due(self, step):
        return (step + 1) % self.every == 0 or step + 1 == self.steps

    def show(self, step, losses, confusion):
        """losses since the last call, and the confusion of their points."""
        first = step + 1 - len(losses)
        self.losses += [(first + i, float(v)) for i, v in enumerate(losses)]
        self.ious.append((step, float(np.nanmean(iou(confusion)))))
        done, seconds = (step + 1) / self.steps, time.perf_counter() - self.begin
        text = f"step {step + 1:5d} of {self.steps}  loss {np.mean(losses):.3f}  mean IoU {self.ious[-1][1]:.3f}  {(step + 1) / seconds:.1f} steps/s"
        if sys.stdout.isatty():
            bar = "#" * round(24 * done)
            print(f"\r[{bar:.<24}] {text}", end="\n" if step + 1 == self.steps else "", flush=True)
        else:
            print(text, flush=True)

    def draw(self, path):
        """Loss, and mean IoU of the points that were learned from, over the steps: an SVG."""
        width, height, left, top = 720, 320, 52, 24
        at = lambda step, share: f"{left + width * step / max(self.steps - 1, 1):.1f},{top + height * (1 - share):.1f}"
        most = max(v for _, v in self.losses)
        smooth = np.convolve([v for _, v in self.losses], np.ones(9) / 9, "valid") if len(self.losses) >= 9 else []
        line = lambda points, colour: f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(points)}"/>'
        text = lambda x, y, s, how="": f'<text x="{x}" y="{y}" font-family="sans-serif" font-size="12" {how}>{s}</text>'
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 2 * left} {height + 70}"><rect width="100%" height="100%" fill="white"/>']
        for k in range(5):
            y = top + height * (1 - k / 4)
            parts.append(f'<line x1="{left}" x2="{left + width}" y1="{y}" y2="{y}" stroke="#dde"/>')
            parts.append(text(left - 6, y + 4, f"{most * k / 4:.2f}", 'text-anchor="end" fill="#194ba0"') + text(left + width + 6, y + 4, k / 4, 'fill="#b04020"'))
            parts.append(text(left + width * k / 4, top + height + 18, round(self.steps * k / 4), 'text-anchor="middle"'))
        parts += [f'<circle r="1.2" fill="#96b4e1" cx="{p[0]}" cy="{p[1]}"/>' for p in (at(s, v / most).split(",") for s, v in self.losses)]
        parts.append(line([at(s + 4, v / most) for s, v in enumerate(smooth)], "#194ba0") + line([at(s, v) for s, v in self.ious], "#b04020"))
        parts.append(text(left, 14, "loss (cross-entropy, nats; line: mean of 9 steps)", 'fill="#194ba0"') + text(left + width, 14, "mean IoU", 'text-anchor="end" fill="#b04020"'))
        parts.append(text(left + width / 2, top + height + 38, "step", 'text-anchor="middle"') + "</svg>\n")
        Path(path).write_text("\n".join(parts))
