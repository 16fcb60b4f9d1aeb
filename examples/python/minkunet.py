# SPDX-License-Identifier: Apache-2.0
"""MinkUNet (Choy et al., CVPR 2019; channels of SPVNAS) on spops.nn: examples/minkunet.c in Python.

    python -m spops.tiles scan.laz --out labelled --network minkunet.py:MinkUNet --voxel 0.1 --tile 40
"""
import torch

import spops.nn as snn

CHANNELS = 32, 32, 64, 128, 256, 256, 128, 96, 96


class Residual(torch.nn.Module):
    """Two convolutions beside the identity, or beside one of a single tap."""

    def __init__(self, a, b):
        super().__init__()
        self.one = snn.Sequential(snn.SubMConv3d(a, b, 3, bias=False), snn.BatchNorm(b, relu=True))
        self.two = snn.Sequential(snn.SubMConv3d(b, b, 3, bias=False), snn.BatchNorm(b))
        self.beside = snn.Sequential(snn.Linear(a, b, bias=False), snn.BatchNorm(b)) if a != b else torch.nn.Identity()
        self.relu = snn.ReLU()

    def forward(self, x):
        return self.relu(self.two(self.one(x)) + self.beside(x))


class MinkUNet(torch.nn.Module):
    """SparseTensor of voxels -> SparseTensor of logits; width: of all channels but classes; levels: 2 to 5."""

    def __init__(self, in_channels=4, classes=19, width=1.0, levels=5):
        super().__init__()
        cs = [int(c * width) for c in CHANNELS]
        first = lambda a, b: (snn.SubMConv3d(a, b, 3, bias=False), snn.BatchNorm(b, relu=True))
        down = lambda c, l: snn.Sequential(snn.SparseConv3d(c, c, 2, stride=2, bias=False, key=l), snn.BatchNorm(c, relu=True))
        up = lambda a, b, l: snn.Sequential(snn.SparseInverseConv3d(a, b, 2, bias=False, key=l), snn.BatchNorm(b, relu=True))
        pair = lambda a, b: snn.Sequential(Residual(a, b), Residual(b, b))
        self.stem = snn.Sequential(*first(in_channels, cs[0]), *first(cs[0], cs[0]))
        self.down = torch.nn.ModuleList(snn.Sequential(down(cs[l], l), pair(cs[l], cs[l + 1])) for l in range(levels - 1))
        self.up, self.mix = torch.nn.ModuleList(), torch.nn.ModuleList()
        c = cs[levels - 1]
        for l in reversed(range(levels - 1)):
            to = cs[8 - l]
            self.up.append(up(c, to, l))
            self.mix.append(pair(to + cs[l], to))
            c = to
        self.head = snn.Linear(c, classes)

    def forward(self, x):
        skips = [self.stem(x)]
        for stage in self.down:
            skips.append(stage(skips[-1]))
        x = skips.pop()
        for up, mix in zip(self.up, self.mix):
            x = mix(up(x).cat(skips.pop()))
        return self.head(x)


def small():
    """A narrow one of three levels with drawn weights, the same each time, for trying things out."""
    torch.manual_seed(0)
    net = MinkUNet(width=0.25, classes=8, levels=3)
    for m in net.modules():
        if isinstance(m, (snn.Convolution, snn.Linear)):
            taps = 4 if isinstance(m, snn.Convolution) else 1  # that most rows have
            torch.nn.init.normal_(m.weight, std=(2 / (taps * m.weight.shape[-2 if taps > 1 else -1])) ** 0.5)
        elif isinstance(m, snn.BatchNorm):
            torch.nn.init.normal_(m.running_mean, std=0.3)
    return net.eval()
