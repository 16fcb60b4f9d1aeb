# SPDX-License-Identifier: Apache-2.0
"""The network of examples/segment in PyTorch: a sparse U-Net that labels the points of LiDAR scans.

    spops scan --out scans --count 200 --seed 1; spops scan --out tests --count 50 --seed 1000001
    python train_segment.py scans tests [--steps 1500] [--device cuda] [--curve curve.svg]

The C program that trains the same network is scripts/train (docs/training.md). On CUDA features and
products are bf16 by autocast; statistics, parameters and their gradients are f32.
"""
import argparse

import torch
from scans import CLASSES, IGNORED, VOXEL_M, Progress, Scans, print_scores

import spops
import spops.nn as snn


class Segment(torch.nn.Module):
    """points [N, 3], scan of each [N], features [N, 8] -> logits of points [N, 9]."""

    def __init__(self, widths=(32, 32, 48, 64, 96)):
        super().__init__()
        norm = lambda conv: snn.Sequential(conv, snn.BatchNorm(conv.out_channels, momentum=0.05, relu=True))
        same = lambda a, b: snn.SubMConv3d(a, b, 3, bias=False)
        levels = list(enumerate(zip(widths, widths[1:])))
        self.stem = norm(same(8, widths[0]))
        self.encode = torch.nn.ModuleList(norm(same(w, w)) for w in widths)
        self.down = torch.nn.ModuleList(norm(snn.SparseConv3d(a, b, 2, stride=2, bias=False, key=l)) for l, (a, b) in levels)
        self.up = torch.nn.ModuleList(snn.SparseInverseConv3d(b, a, 2, bias=False, key=l) for l, (a, b) in levels)
        self.decode = torch.nn.ModuleList(norm(same(w, w)) for w in widths[:-1])
        self.head = same(widths[0], 16)  # 9 classes, padded
        for m in self.modules():
            if isinstance(m, snn.Convolution):
                torch.nn.init.normal_(m.weight, std=(2 / (m.kernel.num_taps * m.in_channels)) ** 0.5)

    def forward(self, points, scan, feats):
        x, skips = self.stem(spops.voxelize(points, VOXEL_M, feats, batch=scan)), []
        for encode, down in zip(self.encode, self.down):
            skips.append(encode(x))
            x = down(skips[-1])
        x = self.encode[-1](x)
        for up, decode in zip(self.up[::-1], self.decode[::-1]):
            x = decode(up(x) + skips.pop())
        return spops.devoxelize(self.head(x), points, batch=scan, interpolation="linear", missing="rescale")[:, : len(CLASSES)]


def confusion_of(logits, classes, weights):
    """Points of class i that are said to be of class j; ignored ones weigh 0."""
    n = len(CLASSES)
    return torch.bincount(classes * n + logits.argmax(1), (weights[classes] > 0).double(), minlength=(n + 1) * n)[: n * n].view(n, n)


def train(net, scans, steps, device, rate=0.003, curve=None):
    decayed = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([dict(params=decayed, weight_decay=0.01), dict(params=others, weight_decay=0.0)], lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, max(steps, 2), pct_start=0.05, cycle_momentum=False)
    weights = torch.tensor([*scans.class_weights(), 0.0], dtype=torch.float32, device=device)
    progress, losses, confusion = Progress(steps), [], 0
    for step, batch in scans.batches(steps):
        points, scan, feats, classes = (torch.from_numpy(a).to(device, non_blocking=True) for a in batch)
        classes = torch.where(classes == IGNORED, len(CLASSES), classes.long())
        with torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda"):
            logits = net(points, scan, feats).float()
        w = weights[classes]
        loss = -(w * logits.log_softmax(1).gather(1, classes.clamp(max=len(CLASSES) - 1)[:, None])[:, 0]).sum() / w.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        confusion = confusion + confusion_of(logits.detach(), classes, weights)
        if progress.is_due(step):
            progress.show(step, torch.stack(losses).tolist(), confusion.cpu().numpy())
            losses, confusion = [], 0
    if curve:
        progress.draw(curve)
    return [v for _, v in progress.losses]


@torch.no_grad()
def test(net, scans, device):
    net.eval()
    confusion = 0
    for points, scan, feats, classes in scans:
        points, scan, feats, classes = (torch.from_numpy(a).to(device) for a in (points, scan, feats, classes))
        classes = torch.where(classes == IGNORED, len(CLASSES), classes.long())
        weights = torch.ones(len(CLASSES) + 1, device=device).index_fill(0, torch.tensor([len(CLASSES)], device=device), 0)
        confusion = confusion + confusion_of(net(points, scan, feats), classes, weights)
    return print_scores(confusion.cpu().numpy())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("train_scans")
    parser.add_argument("test_scans")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--curve", default="curve.svg")
    args = parser.parse_args()
    torch.manual_seed(1)
    net = Segment().to(args.device)
    train(net, Scans(args.train_scans), args.steps, args.device, curve=args.curve)
    test(net, Scans(args.test_scans), args.device)
