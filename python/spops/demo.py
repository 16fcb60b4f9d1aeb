# SPDX-License-Identifier: Apache-2.0
"""Trains a small sparse U-Net to label the points of a simulated street, and draws what it says.

    python -m spops.demo [picture.png] [--steps 40] [--device cpu]

The picture shows a scene that the network has not seen, from above: true labels on the left, the
network's on the right. Grey is ground, blue are cars, red are walls, green are poles and trees.
"""
from __future__ import annotations

import argparse
import struct
import time
import zlib

import torch

import spops
import spops.nn as snn

COLOURS = torch.tensor([[130, 130, 130], [40, 110, 230], [210, 70, 50], [50, 170, 80]], dtype=torch.uint8)
EXTENT_M = 20.0


def box(lower, upper, n, g):
    """Points on the sides and the top of a box."""
    lower, upper = torch.tensor(lower), torch.tensor(upper)
    p = torch.rand(n, 3, generator=g)
    side = torch.randint(0, 5, (n,), generator=g)
    axis = torch.where(side == 4, 2, side // 2)
    p[torch.arange(n), axis] = torch.where(side == 4, 1.0, (side % 2).float())
    return lower + p * (upper - lower)


def street(seed):
    """Points [N, 3] in m and labels [N] of a street with cars, walls, poles and trees: the same on torch's default device, whichever."""
    there = torch.get_default_device()
    with torch.device("cpu"):
        points, labels = draw_street(seed)
    return points.to(there), labels.to(there)


def draw_street(seed):
    g = torch.Generator().manual_seed(seed)
    u = lambda a, b: float(torch.rand(1, generator=g)) * (b - a) + a
    parts = [(torch.cat([(torch.rand(9000, 2, generator=g) - 0.5) * 2 * EXTENT_M, torch.zeros(9000, 1)], 1), 0)]
    for _ in range(9):
        x, y = u(-18, 18), u(-6, 6)
        parts.append((box([x - 2.2, y - 0.9, 0.2], [x + 2.2, y + 0.9, 1.6], 350, g), 1))
    for side in (-1, 1):
        for _ in range(3):
            x, y = u(-18, 10), side * u(11, 14)
            parts.append((box([x, y, 0.0], [x + u(4, 8), y + side * 4, u(3, 6)], 900, g), 2))
    for _ in range(10):
        x, y = u(-19, 19), (1 if u(0, 1) > 0.5 else -1) * u(7, 10)
        trunk = torch.tensor([x, y, 0.0]) + torch.rand(80, 3, generator=g) * torch.tensor([0.3, 0.3, 4.0])
        crown = torch.tensor([x, y, 4.0]) + torch.randn(160, 3, generator=g) * 0.6
        parts += [(trunk, 3), (crown, 3)]
    points = torch.cat([p for p, _ in parts])
    labels = torch.cat([torch.full((len(p),), k) for p, k in parts])
    return points + torch.randn(points.shape, generator=g) * 0.02, labels


class Network(torch.nn.Module):
    """Voxels of 0.4 m, three levels, and labels of points."""

    def __init__(self, c=24):
        super().__init__()
        layer = lambda conv, n: snn.Sequential(conv, snn.BatchNorm(n, relu=True))
        self.stem = layer(snn.SubMConv3d(2, c), c)
        self.down1 = layer(snn.SparseConv3d(c, 2 * c, 2, stride=2, key="d1"), 2 * c)
        self.mid1 = layer(snn.SubMConv3d(2 * c, 2 * c), 2 * c)
        self.down2 = layer(snn.SparseConv3d(2 * c, 4 * c, 2, stride=2, key="d2"), 4 * c)
        self.mid2 = layer(snn.SubMConv3d(4 * c, 4 * c), 4 * c)
        self.up2 = layer(snn.SparseInverseConv3d(4 * c, 2 * c, 2, key="d2"), 2 * c)
        self.up1 = layer(snn.SparseInverseConv3d(2 * c, c, 2, key="d1"), c)
        self.head = snn.Linear(2 * c, len(COLOURS))

    def forward(self, points):
        ones = torch.ones(len(points), 1, device=points.device)
        x = spops.voxelize(points, 0.4, torch.cat([points[:, 2:], ones], 1))
        a = self.stem(x)
        b = self.mid1(self.down1(a))
        c = self.mid2(self.down2(b))
        y = self.up1(b + self.up2(c)).cat(a)
        return spops.devoxelize(self.head(y), points, 0.4, origin=0.0)


def png(path, pixels):
    """Write pixels, u8 [height, width, 3]."""
    h, w, _ = pixels.shape
    rows = b"".join(b"\0" + pixels[i].contiguous().numpy().tobytes() for i in range(h))
    chunk = lambda tag, data: struct.pack(">I", len(data)) + tag + data + struct.pack(">I", zlib.crc32(tag + data))
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)))
        f.write(chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))


def seen_from_above(points, labels, size=480):
    """u8 [size, size, 3]: the highest point in every pixel, with its label's colour."""
    order = points[:, 2].argsort()
    p = ((points[order, :2] / EXTENT_M + 1) / 2 * size).long().clamp(1, size - 2)
    picture = torch.full((size, size, 3), 255, dtype=torch.uint8)
    for i in range(len(order)):
        picture[p[i, 1], p[i, 0] - 1 : p[i, 0] + 1] = COLOURS[labels[order[i]]]
    return picture.flip(0)


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m spops.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("picture", nargs="?", default="spops_demo.png")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(argv)
    torch.manual_seed(0)
    net = Network().to(args.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    begin = time.time()
    for step in range(args.steps):
        points, labels = (t.to(args.device) for t in street(step))
        loss = torch.nn.functional.cross_entropy(net(points), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 or step == args.steps - 1:
            print(f"step {step:3d}  loss {loss.item():.3f}  {time.time() - begin:.1f} s", flush=True)
    net.eval()
    points, labels = street(10_000)
    with torch.no_grad():
        said = net(points.to(args.device)).argmax(1).cpu()
    right = (said == labels).float().mean().item()
    gap = torch.full((480, 10, 3), 255, dtype=torch.uint8)
    png(args.picture, torch.cat([seen_from_above(points, labels), gap, seen_from_above(points, said)], 1))
    print(f"{100 * right:.1f} % of the points of a scene that it has not seen; {args.picture}")
    return right


if __name__ == "__main__":
    main()
