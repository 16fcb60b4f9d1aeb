# SPDX-License-Identifier: Apache-2.0
"""Submanifold 3x3x3 convolutions beside FlexGEMM's: one process, one card, the same rows, f16, L2 flushed before each run.

    python python/bench/flexgemm.py [--data DIR] [--groups few,large,decoder,clouds,widths] [--compile-ahead 14] [--output FILE]
    python python/bench/flexgemm.py --list            the cells
    python python/bench/flexgemm.py --device cpu      small sets beside sums in PyTorch, f32: results alone are looked at

FlexGEMM (github.com/JeffreyXiang/FlexGEMM) is installed by who runs this; without it the program says so and ends. It takes its
default algorithm, masked implicit GEMM with split K. Its tiles and splits are searched for every cell by device time with L2 flushed,
among its own list for the card and tiles that won elsewhere (TILES). Splits are those that it would try, up to 4 parts of forward and of
the gradient of x, 2 to 64 of that of the weights. Maps of both are made before; no bias. Samples are in turns of --block.

    few      20,000 to 50,000 rows             large    surfaces of 75,832 to 1.2 million rows, 128 columns
    decoder  the convolutions of a frame of TRELLIS.2's decoder at 1,024^3, as examples/decoder.c makes its sets
    clouds   the 15 cells of docs/sparseconv.md, forward, and forward with both gradients ("step")
    widths   other widths of the first sets

Files of DIR are .npy arrays of rows; sets whose file is not there are left out. --compile-ahead: so many processes compile FlexGEMM's
kernels into Triton's cache first. The last column is FlexGEMM's tile: rows, columns, depth.
"""
from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import torch

import spops.functional as F

ROOT = Path(__file__).resolve().parents[2]
BEGIN = time.monotonic()
TAPS = 27
MOST_DIFFERENCE = 2e-3  # norm of the difference over the norm: f16 on both sides, sums in f32
FLUSH_BYTES = 256 << 20
# rows of a tile, its columns, depth of a step, stages, warps: beside FlexGEMM's own list for the card
TILES = ((128, 128, 64, 5, 4), (128, 64, 32, 4, 4), (64, 256, 64, 5, 4), (128, 32, 32, 4, 4), (64, 32, 32, 5, 2), (256, 64, 64, 5, 4), (128, 128, 32, 4, 4),
         (32, 64, 32, 5, 2), (256, 128, 64, 3, 8), (128, 256, 64, 3, 8), (64, 128, 32, 4, 4), (128, 128, 64, 4, 8))  # fmt: skip
SPLITS, WEIGHT_SPLITS = (1, 2, 4), (2, 4, 8, 16, 32, 64)

# ---- Sets -----------------------------------------------------------------------------------------


def gyroid(size: int, device) -> torch.Tensor:
    """Voxels nearer to a gyroid's surface than 0.75 of a voxel, one period in size^3 cells: [N, 3]."""
    step = 2 * math.pi / size
    axis, parts = torch.arange(size, device=device, dtype=torch.float32) * step, []
    y, z = axis.view(1, -1, 1), axis.view(1, 1, -1)
    for first in range(0, size, 64):
        x = axis[first : first + 64].view(-1, 1, 1)
        value = x.sin() * y.cos() + y.sin() * z.cos() + z.sin() * x.cos()
        slope = (x.cos() * y.cos() - z.sin() * x.sin()) ** 2 + (y.cos() * z.cos() - x.sin() * y.sin()) ** 2 + (z.cos() * x.cos() - y.sin() * z.sin()) ** 2
        cells = (value.abs() < 0.75 * step * slope.sqrt().clamp_min(1e-3)).nonzero().int()
        cells[:, 0] += first
        parts.append(cells)
    return torch.cat(parts)


def on_surface(rows: torch.Tensor, size: int) -> torch.Tensor:
    """Whether cells of size^3 are on the surface, as surface_has of examples/decoder has it."""
    step = 2 * math.pi / size
    angle = (rows.double() + 0.5) * step
    s, c = angle.sin().unbind(1), angle.cos().unbind(1)
    value = s[0] * c[1] + s[1] * c[2] + s[2] * c[0]
    slope = sum((c[a] * c[(a + 1) % 3] - s[(a + 2) % 3] * s[a]) ** 2 for a in range(3))
    return value.abs() < 0.75 * step * slope.sqrt()


def decoder_level(level: int, device, size: int = 64) -> torch.Tensor:
    """Rows of a level of the decoder: cells of size^3 on the surface, then of their children those that are, as often as level says."""
    bits = torch.tensor([[child >> 2, child >> 1 & 1, child & 1] for child in range(8)], dtype=torch.int32, device=device)
    rows = torch.zeros(1, 3, dtype=torch.int32, device=device)
    for _ in range(size.bit_length() - 1):
        rows = (2 * rows[:, None] + bits).view(-1, 3)
    rows = rows[on_surface(rows, size)]
    for _ in range(level):
        size *= 2
        rows = (2 * rows[:, None] + bits).view(-1, 3)
        rows = torch.cat([part[on_surface(part, size)] for part in rows.split(1 << 22)])
    return rows


def cloud(path: Path, voxel: float, device) -> torch.Tensor:
    """Voxels of a file: its own where it has integers, else of this size."""
    a = np.load(path)
    if a.dtype.kind == "f":
        points = a[:, :3].astype(np.float64)
        points = points[np.isfinite(points).all(1)]
        a = np.unique(np.floor((points - points.min(0)) / voxel).astype(np.int32), axis=0)
    a = a[:, -3:].astype(np.int32)
    a = a - a.min(0)
    return torch.from_numpy(np.ascontiguousarray(a[np.lexsort((a[:, 2], a[:, 1], a[:, 0]))])).to(device)


def rows_of(name: str, a) -> torch.Tensor | None:
    """Rows [N, 4] of a set by its name; None: its file is not there."""
    kind, _, size = name.partition(":")
    if kind == "gyroid":
        xyz = gyroid(int(size), a.device)
    elif kind == "decoder":
        xyz = decoder_level(*map(int, size.split(":")[:1]), a.device, *map(int, size.split(":")[1:]))
    else:
        path = Path(a.data or ".") / f"{kind}.npy"
        if not path.is_file():
            return None
        xyz = cloud(path, float(size or 1), a.device)
    return torch.cat([torch.zeros_like(xyz[:, :1]), xyz], 1).contiguous()


# ---- Cells: group, set, columns, pass, how often a frame has it ------------------------------------

FEW = "indoor_redkitchen_a:0.02", "indoor_redkitchen_a:0.015", "kitti_odom_a:0.2", "kitti_odom_b:0.1", "indoor_roomscan_a:0.02", "gyroid:66"
FRAME = (  # of docs/decoder.md: blocks and fine convs are one cell
    (3, 128, 128, 5), (4, 64, 64, 1), (2, 256, 256, 9), (1, 512, 512, 17), (0, 1024, 1024, 4), (0, 1024, 4096, 1), (1, 512, 2048, 1), (2, 256, 1024, 1), (3, 128, 512, 1),
)  # fmt: skip
WIDTHS = (32, 32), (64, 64), (64, 128), (128, 128), (256, 256)
CELLS = [
    *(("few", FEW[0], ci, 128, "forward", 1) for ci in (128, 64)),
    *(("large", f"gyroid:{size}", 128, 128, "forward", 1) for size in (256, 512, 128)),
    *(("few", name, ci, 128, "forward", 1) for name in FEW[1:] for ci in (128, 64)),
    *(("decoder", f"decoder:{level}", ci, co, "forward", times) for level, ci, co, times in FRAME),
    *(("clouds", f"conv_{name}", ci, co, "step", 1) for name in ("lidar", "indoor", "shell") for ci, co in WIDTHS),
    *(("widths", name, ci, co, "step", 1) for name in (FEW[0], FEW[2]) for ci, co in WIDTHS),
]
SMALL = (("small", "gyroid:12", 8, 16, "step", 1), ("small", "decoder:1:16", 4, 4, "forward", 1))  # on the CPU

# ---- The two sides ---------------------------------------------------------------------------------


class Ours:
    """Convolutions of one set, through the Python package."""

    def __init__(self, rows):
        self.map = F.kernel_map(F.coords(rows), size=3)

    def layer(self, x, w, grad, step: bool):
        n, ci, co = len(x), x.shape[1], w.shape[0]
        weights = w.permute(1, 2, 3, 4, 0).reshape(TAPS, ci, co).contiguous()
        plan = F.sparseconv_plan(self.map, backward=step, max_in_channels=ci, max_out_channels=co)
        out, gx = x.new_full((n, co), float("nan")), torch.full_like(x, float("nan"))
        gw = torch.full((TAPS, ci, co), float("nan"), device=x.device)

        def forward():
            F.sparseconv(x, weights, plan, out=out)
            return out

        def backward():
            F.sparseconv_backward(x, weights, grad, plan, grad_x=gx, grad_w=gw, grad_bias=False)
            return gx, gw.view(3, 3, 3, ci, co).permute(4, 0, 1, 2, 3)

        return forward, backward


class Sums:
    """The same sums in PyTorch, tap by tap, on the weights as FlexGEMM has them."""

    def __init__(self, rows):
        places = {tuple(row): i for i, row in enumerate(rows[:, 1:].tolist())}
        self.pairs = []
        for tap in range(TAPS):
            d = tap // 9 - 1, tap // 3 % 3 - 1, tap % 3 - 1
            pairs = [(i, places[near]) for (x, y, z), i in places.items() if (near := (x + d[0], y + d[1], z + d[2])) in places]
            self.pairs.append(torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1))

    def layer(self, x, w, grad, step: bool):
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()

        def forward():
            out = x.new_zeros(len(x), w.shape[0])
            for tap, (i, j) in enumerate(self.pairs):
                out = out.index_add(0, i, x[j] @ w[:, tap // 9, tap // 3 % 3, tap % 3].T)
            return out

        return forward, lambda: torch.autograd.grad(forward(), (x, w), grad)


class FlexGEMM:
    """FlexGEMM's modules, with tiles searched by device time."""

    def __init__(self, measure):
        for name in ("USE_AUTOTUNE_CACHE", "AUTOSAVE_AUTOTUNE_CACHE"):
            os.environ[f"FLEX_GEMM_{name}"] = "0"
        ops = importlib.import_module("flex_gemm.ops.spconv")
        ops.set_algorithm(ops.Algorithm.MASKED_IMPLICIT_GEMM_SPLITK)
        self.function = ops.SubMConv3dFunction
        name = "flex_gemm.kernels.triton.spconv.sparse_submanifold_conv_"
        forward, backward = (importlib.import_module(f"{name}{way}_masked_implicit_gemm_splitk") for way in ("fwd", "bwd"))
        own = importlib.import_module("flex_gemm.kernels.triton.spconv.config").autotune_config
        short, long = self.tiles(own)
        self.passes = {}  # of each pass: what picks the parts, then the kernels of one part and of several
        for key, module, middle, splits in (("forward", forward, "fwd", SPLITS), ("x", backward, "bwd_input", SPLITS), ("w", backward, "bwd_weight", WEIGHT_SPLITS)):
            base = f"sparse_submanifold_conv_{middle}_masked_implicit_gemm"
            pick, one, several = (getattr(module, base + end) for end in ("_splitk", "_kernel", "_splitk_kernel"))
            one.configs, several.configs = (long if key == "forward" else short), short
            for kernel in (one, several):
                kernel.do_bench = lambda call, quantiles=None: [self.time_of(measure, call)] * 3
                self.compile_once(kernel, ("LOGN", "N") if key == "w" else ("LOGN",))
            every = pick.config_fn
            pick.config_fn = lambda *a, every=every, splits=splits, **k: [c for c in every(*a, **k) if c["SPLITK"] in splits] or every(*a, **k)[:1]
            pick._benchmark = lambda a, k, configs, pick=pick: min(configs, key=lambda c: measure([lambda: pick.kernel(*a, **k, **c)], 5)[0])
            self.passes[key] = pick, one, several

    @staticmethod
    def time_of(measure, call) -> float:
        """Of a tile; one that does not start takes for ever."""
        try:
            return measure([call], 3)[0]
        except Exception:
            return math.inf

    @staticmethod
    def tiles(own) -> tuple[list, list]:
        """The first of TILES, and all of them behind FlexGEMM's own; one that does not fit does not start, and is passed over."""
        import triton

        ours = [triton.Config({"B1": a, "B2": b, "BK": k}, num_stages=s, num_warps=w) for a, b, k, s, w in TILES]
        return ours[:10], list({(str(c.kwargs), c.num_stages, c.num_warps): c for c in [*own, *ours]}.values())

    @staticmethod
    def compile_once(kernel, unused) -> None:
        """Arguments that a kernel does not read need no compilation of their own for multiples of 16."""
        while hasattr(kernel, "fn") and not hasattr(kernel, "params"):
            kernel = kernel.fn
        for parameter in getattr(kernel, "params", ()):
            if parameter.name in unused:
                parameter.do_not_specialize = True

    def neighbours(self, rows, step: bool):
        shape = [int(v) + 1 for v in rows[:, 1:].max(0).values]
        return self.function._compute_neighbor_cache(rows, torch.Size([1, 1, *shape]), (3, 3, 3), (1, 1, 1), step)

    def layer(self, cache, x, w, grad):
        for tuners in self.passes.values():  # each cell is searched anew: FlexGEMM's keys know the logarithm of the rows
            for tuner in tuners:
                tuner.cache.clear()
        x, w, call = x.detach().requires_grad_(), w.detach().requires_grad_(), self.function
        return (lambda: call._sparse_submanifold_conv_forward(x, cache, w, None)), (lambda: call._sparse_submanifold_conv_backward(grad, x, cache, w, None)[:2])

    def chosen(self, key: str) -> str:
        """Parts and tile of the last call of a pass."""
        pick, one, several = self.passes[key]
        parts = list(pick.cache.values())[-1]["SPLITK"]
        best = (one if parts == 1 else several).best_config
        return "x".join(str(best.kwargs[k]) for k in ("B1", "B2", "BK")) + f" stages {best.num_stages} warps {best.num_warps} parts {parts}"

    def compile_part(self, part: int, parts: int) -> None:
        """Every parts-th kernel, from part on, into Triton's cache, by running it on a few rows."""
        work = [(key, splits, config, odd) for key, (_, one, several) in self.passes.items()
                for splits in (SPLITS if key != "w" else WEIGHT_SPLITS)
                for config in (one if splits == 1 else several).configs
                for odd in ((0, 1) if key != "w" and splits < 4 else (1,))]  # fmt: skip
        caches = {}
        for key, splits, config, odd in work[part::parts]:
            pick, one, several = self.passes[key]
            one.configs = several.configs = [config]
            n = 512 + odd
            if odd not in caches:
                at = torch.arange(n, device="cuda", dtype=torch.int32)
                rows = torch.stack([torch.zeros_like(at), at // 64, at // 8 % 8, at % 8], 1).contiguous()
                caches[odd] = self.neighbours(rows, True)
            c = caches[odd]
            x, w = torch.zeros(n, 128, device="cuda", dtype=torch.float16), torch.zeros(128, TAPS, 128, device="cuda", dtype=torch.float16)
            mapped = c.neighbor_map, c.sorted_idx, c.valid_kernel_callback, c.valid_kernel_seg_callback
            given = {"forward": (x, w, None, *mapped), "x": (x, w, *mapped), "w": (x, x, c.valid_signal_i, c.valid_signal_o, c.valid_signal_seg)}[key]
            try:
                pick.kernel(*given, SPLITK=splits)
            except Exception as error:  # such a tile is left out where it is searched, too
                print(f"{key} {config} in {splits} parts: {str(error)[:100]}", file=sys.stderr)


# ---- Time ------------------------------------------------------------------------------------------


class Clock:
    def __init__(self, block: int):
        self.block = block
        self.flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")

    def __call__(self, calls, samples: int) -> list[float]:
        """Median device time of each call, us: in turns of `block` samples, L2 flushed before each, queued behind a kernel that sleeps."""
        for call in calls:
            call()
        block = min(self.block, samples)
        events = [[[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(-(-samples // block) * block)] for _ in calls]
        torch.cuda.synchronize()
        torch.cuda._sleep(int(1e6 * (2 + 1.6 * len(events[0]) * len(calls))))  # cycles: the host is ahead
        for first in range(0, len(events[0]), block):
            for call, of_call in zip(calls, events):
                for begin, end in of_call[first : first + block]:
                    self.flush.zero_()
                    self.flush.max()  # what was written need not be written back meanwhile
                    begin.record()
                    call()
                    end.record()
        torch.cuda.synchronize()
        return [1e3 * statistics.median(begin.elapsed_time(end) for begin, end in of_call) for of_call in events]


def difference(found, right) -> float:
    """Norm of the difference over the norm; of some of the rows where there are many."""
    stride = 1 + found.numel() // (1 << 26)
    found, right = found[::stride].double(), right[::stride].double()
    return ((found - right).norm() / right.norm()).item()


def operands(n: int, ci: int, co: int, device):
    dtype = torch.float32 if device == "cpu" else torch.float16
    torch.manual_seed(1)
    x, grad = torch.randn(n, ci, device=device, dtype=dtype), 0.1 * torch.randn(n, co, device=device, dtype=dtype)
    return x, (torch.randn(co, 3, 3, 3, ci, device=device) * (TAPS * ci) ** -0.5).to(dtype), grad


def measure_cell(cell, rows, ours, theirs, cache, clock, a) -> dict:
    group, name, ci, co, what, times = cell
    x, w, grad = operands(len(rows), ci, co, a.device)
    step = what == "step"
    forward, backward = ours.layer(x, w, grad, step)
    other_forward, other_backward = theirs.layer(*((x, w, grad, step) if cache is None else (cache, x, w, grad)))
    row = {"group": group, "set": name, "rows": len(rows), "pairs": ours.map.max_pairs, "in": ci, "out": co, "times": times}
    with torch.set_grad_enabled(step):
        row["difference"] = difference(forward().detach(), other_forward().detach())
        if step:
            for key, found, right in zip(("x", "w"), backward(), other_backward()):
                row[f"grad_{key}_difference"] = difference(found, right)
        if clock is None:
            return row
        row["spops_us"], row["flexgemm_us"] = clock([forward, other_forward], a.samples)
        row["tile"] = theirs.chosen("forward")
        if step:
            row["spops_step_us"], row["flexgemm_step_us"] = clock([lambda: (forward(), backward()), lambda: (other_forward(), other_backward())], a.samples)
            row["tile_grad_x"], row["tile_grad_w"] = theirs.chosen("x"), theirs.chosen("w")
    return row


def told(row) -> str:
    text = f"{row['group']:8}{row['set']:26}{row['rows']:8} {row['in']:5}->{row['out']:<5}"
    if "spops_us" in row:
        text += f"{row['spops_us']:9.1f}{row['flexgemm_us']:9.1f} {row['flexgemm_us'] / row['spops_us']:6.2f}"
    if "spops_step_us" in row:
        text += f"  step {row['spops_step_us']:8.1f}{row['flexgemm_step_us']:9.1f} {row['flexgemm_step_us'] / row['spops_step_us']:6.2f}"
    return text + f"  differs by {max(v for k, v in row.items() if k.endswith('difference')):.1e}  {row.get('tile', '')}"


def mean(ratios) -> str:
    return f"{math.exp(statistics.fmean(map(math.log, ratios))):.2f} (least {min(ratios):.2f}, {len(ratios)} cells)"


def summary(results) -> None:
    for group in dict.fromkeys(row["group"] for row in results):
        rows = [row for row in results if row["group"] == group]
        print(f"{group}: forward {mean([row['flexgemm_us'] / row['spops_us'] for row in rows])}", end="")
        if steps := [row["flexgemm_step_us"] / row["spops_step_us"] for row in rows if "spops_step_us" in row]:
            print(f"; step {mean(steps)}", end="")
        if group == "decoder":
            us = [sum(row["times"] * row[f"{side}_us"] for row in rows) for side in ("spops", "flexgemm")]
            print(f"; {sum(row['times'] for row in rows)} convolutions of a frame {us[0] / 1e3:.2f} ms, {us[1] / 1e3:.2f}: {us[1] / us[0]:.2f}", end="")
        print(flush=True)
    if wide := [row["flexgemm_us"] / row["spops_us"] for row in results if row["out"] == 128]:
        print(f"128 columns, every set: forward {mean(wide)}", flush=True)


def compile_ahead(processes: int, seconds: float) -> None:
    workers = [subprocess.Popen([sys.executable, __file__, "--compile-part", f"{i}/{processes}"], stdout=subprocess.DEVNULL) for i in range(processes)]
    while any(worker.poll() is None for worker in workers) and time.monotonic() - BEGIN < seconds:
        time.sleep(0.05)
    for worker in workers:
        worker.terminate()
    ended = sum(worker.wait() == 0 for worker in workers)
    print(f"kernels compiled at {time.monotonic() - BEGIN:.0f} s: {ended} of {processes} processes are through", flush=True)


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--data", default=os.environ.get("SPOPS_TEST_DATA"), help="folder of the clouds (default: SPOPS_TEST_DATA)")
    p.add_argument("--groups", default="", help="few,large,decoder,clouds,widths (default: all)")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--samples", type=int, default=10)
    p.add_argument("--block", type=int, default=5, help="samples of one side before those of the other; 1: each kernel comes after another's")
    p.add_argument("--seconds", type=float, default=math.inf, help="begin no cell after so many")
    p.add_argument("--compile-ahead", type=int, default=0, metavar="PROCESSES")
    p.add_argument("--compile-part", help=argparse.SUPPRESS)
    p.add_argument("--list", action="store_true", help="print the cells alone")
    p.add_argument("--output", help="append one JSON object for each cell to this file")
    a = p.parse_args()
    known = list(dict.fromkeys(cell[0] for cell in CELLS))
    a.groups = a.groups.split(",") if a.groups else known
    if unknown := [g for g in a.groups if g not in known]:
        p.error(f"--groups has {unknown[0]!r}, expected some of {','.join(known)}")
    for name in ("samples", "block"):
        if getattr(a, name) < 1:
            p.error(f"--{name} is {getattr(a, name)}, expected 1 or more")
    if a.list:
        a.device = "cpu"
    if a.device == "cuda" and importlib.util.find_spec("flex_gemm") is None:
        print("FlexGEMM is not installed: there is nothing to compare with")
        sys.exit(0)
    if a.device == "cuda" and not torch.cuda.is_available():
        p.error("PyTorch finds no GPU")
    return a


def main():
    a = arguments()
    cells = SMALL if a.device == "cpu" and not a.list else [cell for cell in CELLS if cell[0] in a.groups]
    if a.list:
        for group, name, ci, co, what, times in cells:
            print(f"{group:8} {name:26} {ci:5}->{co:<5} {what}{f', {times} of a frame' if times > 1 else ''}")
        return 0
    clock = theirs = None
    if a.device == "cuda":
        if a.compile_ahead and not a.compile_part:
            compile_ahead(a.compile_ahead, 0.4 * a.seconds)
        clock = Clock(a.block)
        theirs = FlexGEMM(clock)
        if a.compile_part:
            theirs.compile_part(*map(int, a.compile_part.split("/")))
            return 0
    device = "CPU" if a.device == "cpu" else torch.cuda.get_device_name()
    commit = os.environ.get("SPOPS_COMMIT") or subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    facts = {"date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "commit": commit, "device": device, "dtype": "f16", "block": a.block, "command": "python python/bench/flexgemm.py"}
    print(f"{device}, PyTorch {torch.__version__}: us of spops, of FlexGEMM, times as fast")
    results, wrong, current = [], [], None
    for cell in cells:
        if time.monotonic() - BEGIN > a.seconds:
            print(f"stopped after {a.seconds:.0f} s: {len(cells) - cells.index(cell)} cells were not measured")
            break
        what = cell[1], cell[4]
        if what != current:  # the cells of a set follow each other
            ours = cache = None
            rows, current = rows_of(cell[1], a), what
            if rows is None:
                print(f"{cell[1]}: no such file in {a.data}")
            else:
                ours = Ours(rows)
                if a.device == "cpu":
                    theirs = Sums(rows)
                else:
                    cache = theirs.neighbours(rows, cell[4] == "step")
        if rows is None:
            continue
        row = measure_cell(cell, rows, ours, theirs, cache, clock, a)
        print(told(row), flush=True)
        wrong += [f"{cell[1]} {cell[2]}->{cell[3]}: {k} is {v:.3g}" for k, v in row.items() if k.endswith("difference") and not v < MOST_DIFFERENCE]
        results.append(row)
        if a.output:
            with open(a.output, "a", encoding="utf-8") as file:
                file.write(json.dumps({**row, **facts}) + "\n")
    if a.device == "cuda" and results:
        summary(results)
    for line in wrong:
        print(f"WRONG: {line}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
