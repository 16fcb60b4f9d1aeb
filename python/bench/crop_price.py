# SPDX-License-Identifier: Apache-2.0
"""What crop_independent costs on CUDA: layers of MinkUNet's levels, and the whole network, with and without.

    python python/bench/crop_price.py SCAN.npy [--voxel 0.1] [--copies 1]      copies lie side by side, as in a larger tile
"""
import argparse
import sys
from pathlib import Path

import numpy as np
import torch

import spops
import spops.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "python"))
from minkunet import MinkUNet  # noqa: E402


def device_us(run, times=50):
    """Median of a captured call's time on the device."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 * times)]
    for a, b in zip(marks[::2], marks[1::2]):
        a.record()
        graph.replay()
        b.record()
    torch.cuda.synchronize()
    return 1e3 * float(np.median([a.elapsed_time(b) for a, b in zip(marks[::2], marks[1::2])]))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("scan")
    p.add_argument("--voxel", type=float, default=0.1)
    p.add_argument("--copies", type=int, default=1)
    a = p.parse_args()
    scan = np.load(a.scan)[:, :3]
    apart = np.array([np.ceil(np.ptp(scan[:, 0])) + 16, 0, 0], np.float32)
    points = torch.from_numpy(np.concatenate([scan + i * apart for i in range(a.copies)])).cuda()
    x = spops.voxelize(points, a.voxel, torch.cat([points, torch.ones_like(points[:, :1])], 1), order="lexicographic")
    x = x.replace(x.feats.half())
    print(f"{torch.cuda.get_device_name()}, f16: rows, channels, us without and with crop_independent")
    level = x.set
    for l, widths in enumerate([(32, 96, 128), (32, 64, 96), (64, 128), (128, 256), (256,)]):
        if l:
            level = F.coords_down(level, size=2, stride=2)
        n = level.max_rows
        map = F.kernel_map(level, kind="submanifold", size=3)
        for c in widths:
            feats, w = torch.randn(n, c, device="cuda").half(), (torch.randn(27, c, c, device="cuda") / 30).half()
            took = []
            for crop in (False, True):
                plan = F.sparseconv_plan(map, crop_independent=crop)
                took.append(device_us(lambda: F.sparseconv(feats, w, plan)))
            print(f"{n:7d} {c:4d} {took[0]:8.1f} {took[1]:8.1f}  {took[1] / took[0]:5.2f}", flush=True)
    net = MinkUNet().eval().cuda().half()
    for m in net.modules():
        if isinstance(m, spops.nn.BatchNorm):
            m.float()
    took = []
    for crop in (False, True, False, True):
        with torch.no_grad():
            if crop:
                with spops.crop_independent():
                    took.append(device_us(lambda: net(x), 20))
            else:
                took.append(device_us(lambda: net(x), 20))
    ratios = f"{took[1] / took[0]:.3f}, {took[3] / took[2]:.3f}"
    print(f"MinkUNet, all layers, maps made: {took[0]:.0f} and {took[1]:.0f} us, again {took[2]:.0f} and {took[3]:.0f}: {ratios}")


if __name__ == "__main__":
    main()
