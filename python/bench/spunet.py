# SPDX-License-Identifier: Apache-2.0
"""Training steps of SpUNet (v1m1, as Pointcept defines it) on spops, and on spconv beside it.

    POINTCEPT_SOURCE=CHECKOUT python python/bench/spunet.py SCAN.npy[:voxel in m] [more scans]
        [--device cuda] [--rows 120000] [--steps 20] [--only spops|spconv] [--convert] [--parts]

The network is Pointcept's file, imported once with spops.spconv under spconv's name and, where spconv
is installed, once with spconv itself. Both train in this process on the same rows, from the same
weights: f16 autocast with a loss scale, AdamW, cross entropy of 20 classes. Scans become the batches
of one sample; the last is cut so that there are --rows rows. Rows of the table: steps a second, the
median step in ms, peak memory of torch's allocator and of the device, and the loss, which shows that
the two learn alike.
--convert: also with spops.nn.convert_batchnorm of the
network; --parts: host and device time by operator.
"""
from __future__ import annotations

import argparse
import contextlib
import importlib.util
import statistics
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/peers"))
import sources  # noqa: E402

import spops.compat  # noqa: E402
import spops.nn  # noqa: E402

CLASSES = 20


def scan(argument: str) -> torch.Tensor:
    """Voxels [N, 3] from 0 on."""
    path, _, size = argument.partition(":")
    a = np.load(path)
    if a.dtype.kind == "f":
        p = a[:, :3].astype(np.float64)
        p = p[np.isfinite(p).all(1)]
        a = np.floor((p - p.min(0)) / float(size or 0.05)).astype(np.int64)
    a = np.unique(a[:, -3:].astype(np.int64), axis=0)
    return torch.from_numpy(a - a.min(0))


def sample(arguments, rows: int, device) -> tuple[dict, torch.Tensor]:
    """What Pointcept's loader gives, and a class for every row: its height, in 20 steps."""
    coords, offset = [], []
    for a in arguments:
        c = scan(a)[: rows - sum(map(len, coords))]
        if len(c):
            coords.append(c)
            offset.append(sum(map(len, coords)))
    grid = torch.cat(coords)
    g = torch.Generator().manual_seed(5)
    feat = torch.cat([grid.float() / 512, torch.randn(len(grid), 1, generator=g)], 1)
    rank = torch.cat([c[:, 2].argsort().argsort() * CLASSES // len(c) for c in coords])
    data = dict(grid_coord=grid, feat=feat, offset=torch.tensor(offset))
    return {k: v.to(device) for k, v in data.items()}, rank.to(device)


class Training:
    """A network with its optimizer; step() is one of training."""

    def __init__(self, net, data, target, device):
        self.net, self.data, self.target, self.device = net.train(), data, target, device
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.005)
        self.scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
        self.half = torch.float16 if device == "cuda" else torch.bfloat16

    def step(self):
        with torch.autocast(self.device, self.half):
            out = self.net(dict(self.data))
            loss = torch.nn.functional.cross_entropy(out.float(), self.target)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def measure(name: str, t: Training, steps: int):
    first = [t.step() for _ in range(4)]  # warm: kernels loaded, tuned, allocator filled
    wait(t.device)
    if t.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    used, times = device_memory(t.device), []
    begin = time.perf_counter()
    for _ in range(steps):
        a = time.perf_counter()
        loss = t.step()
        wait(t.device)
        times.append(1e3 * (time.perf_counter() - a))
    whole = time.perf_counter() - begin
    peak = torch.cuda.max_memory_allocated() / 2**20 if t.device == "cuda" else float("nan")
    print(
        f"{name:24} {steps / whole:7.2f} steps/s, median {statistics.median(times):7.2f} ms, least {min(times):7.2f}, peak {peak:6.0f} MiB of torch, "
        f"{used:6.0f} MiB of the device, loss {first[0].item():.4f} -> {loss.item():.4f}", flush=True,
    )  # fmt: skip
    return steps / whole


def device_memory(device) -> float:
    if device != "cuda":
        return float("nan")
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def parts(name: str, t: Training):
    """Where a step's time goes: by operator on the host, by kernel on the device."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if t.device == "cuda" else [])
    with profile(activities=kinds) as p:
        for _ in range(2):
            t.step()
        wait(t.device)
    print(f"-- {name}: two steps")
    keys = ["self_cpu_time_total"] + (["self_cuda_time_total"] if t.device == "cuda" else [])
    for key in keys:
        print(p.key_averages().table(sort_by=key, row_limit=45, max_name_column_width=90).replace("-" * 20, ""))
    a = time.perf_counter()
    t.step()
    b = time.perf_counter()
    wait(t.device)
    c = time.perf_counter()
    print(f"-- {name}: a step returns after {1e3 * (b - a):.2f} ms, and has ended after {1e3 * (c - a):.2f} ms", flush=True)


@contextlib.contextmanager
def cleared(device):
    yield
    if device == "cuda":
        torch.cuda.empty_cache()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("scans", nargs="+")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--rows", type=int, default=120000)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--only", default="")
    p.add_argument("--convert", action="store_true")
    p.add_argument("--parts", action="store_true")
    a = p.parse_args()
    root = sources.folder("POINTCEPT_SOURCE")
    if root is None:
        raise SystemExit("POINTCEPT_SOURCE names no checkout of Pointcept")
    data, target = sample(a.scans, a.rows, a.device)
    print(f"{len(target)} rows in {len(data['offset'])} scans, torch {torch.__version__}, "
          f"{torch.cuda.get_device_name() if a.device == 'cuda' else 'CPU'}", flush=True)  # fmt: skip
    mine = spops.compat.modules("spconv")
    variants = [("spops", mine)]
    if importlib.util.find_spec("spconv") is not None and a.device == "cuda":
        variants.append(("spconv", sources.installed("spconv")))
    if a.convert:
        variants.append(("spops, norms converted", mine))
    state, rates = None, {}
    for name, modules in variants:
        if a.only not in ("", name.partition(",")[0]):
            continue
        space = sources.pointcept(root, modules, "sparse_unet.spconv_unet_v1m1_base")
        torch.manual_seed(0)
        net = space.SpUNetBase(4, CLASSES)
        state = state or {k: v.clone() for k, v in net.state_dict().items()}
        net.load_state_dict(state)
        if "," in name:
            net = spops.nn.convert_batchnorm(net)
        with cleared(a.device):
            t = Training(net.to(a.device), data, target, a.device)
            try:
                rates[name] = measure(name, t, a.steps)
                if a.parts and name != "spconv":
                    parts(name, t)
            except Exception:
                if name != "spconv":
                    raise
                traceback.print_exc()  # of a library that is not ours: the others are still measured
            del t, net
    if "spconv" in rates:
        for label, r in rates.items():
            if label != "spconv":
                print(f"{label}: {r / rates['spconv']:.2f} times the steps a second of spconv")


if __name__ == "__main__":
    main()
