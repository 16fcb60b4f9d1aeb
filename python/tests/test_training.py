# SPDX-License-Identifier: Apache-2.0
"""examples/python: the loss of the segmentation network falls in a few steps, and its pieces are right."""
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import spops.demo

folder = Path(__file__).resolve().parents[2] / "examples" / "python"
if not folder.is_dir():
    pytest.skip("this is no checkout", allow_module_level=True)
sys.path.insert(0, str(folder))
import scans as data  # noqa: E402


@pytest.fixture(scope="module")
def street_scans(tmp_path_factory):
    """A folder of two small scans, as `spops scan` writes them."""
    to = tmp_path_factory.mktemp("scans")
    for seed in range(2):
        points, labels = spops.demo.street(seed)
        some = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:3000]
        sensor = np.concatenate([points[some].numpy() - [0, 0, 1.8], np.full((3000, 1), 0.5)], 1)
        np.save(to / f"scan_{seed:06d}.npy", sensor.astype(np.float32))
        np.save(to / f"scan_{seed:06d}_labels.npy", np.array([1, 7, 5, 9], np.uint8)[labels[some].numpy()])
    return to


def falls(losses):
    return all(np.isfinite(losses)) and np.mean(losses[-3:]) < 0.75 * np.mean(losses[:3])


def test_torch(street_scans, tmp_path, capsys, device):
    import train_segment

    torch.manual_seed(1)
    net = train_segment.Segment().to(device)
    assert sum(p.numel() for p in net.parameters()) == 915_616  # docs/training.md
    scans = data.Scans(street_scans)
    losses = train_segment.train(net, scans, 12, device.type, rate=0.01, curve=tmp_path / "curve.svg")
    print(losses)
    assert falls(losses), losses
    assert (tmp_path / "curve.svg").read_text().count("<circle") == 12
    assert train_segment.test(net, scans, device.type) > 0.1 and "road" in capsys.readouterr().out


def test_jax(street_scans, tmp_path, device):
    jax = pytest.importorskip("jax")
    if device.type == "cuda" and jax.default_backend() == "cpu":
        pytest.skip("JAX has no CUDA device")
    import train_segment_jax

    (weights, norms), statistics = train_segment_jax.parameters(jax.random.key(1))
    assert sum(p.size for p in jax.tree.leaves((weights, norms))) == 915_616 and len(statistics) == 14
    scans = data.Scans(street_scans)
    state, losses = train_segment_jax.train(scans, 8, rate=0.01, curve=tmp_path / "curve.svg")
    assert all(np.isfinite(losses)) and np.mean(losses[-2:]) < 0.85 * losses[0], losses
    assert train_segment_jax.test(state, scans) > 0.05


def test_scores_and_weights(street_scans):
    c = np.array([[3, 1, 0], [0, 2, 0], [0, 0, 0]])
    np.testing.assert_array_equal(data.iou(c)[:2], [3 / 4, 2 / 3])
    assert np.isnan(data.iou(c)[2])
    scans = data.Scans(street_scans)
    counts = sum(np.bincount(c, minlength=9) for _, c in scans.scans)
    w = scans.class_weights()
    assert w[1] == 0 and abs((w * counts).sum() / counts.sum() - 1) < 1e-5
    assert abs(w[0] / w[5] - np.sqrt(counts[5] / counts[0])) < 1e-5


def test_changes_move_points_rigidly(street_scans):
    scans = data.Scans(street_scans)
    points, batch, feats, classes = scans.batch(3)
    again = scans.batch(3)
    assert all(np.array_equal(a, b) for a, b in zip((points, batch, feats, classes), again))
    assert set(batch) == {0, 1} and feats.shape == (len(points), 8) and feats.dtype == np.float32
    p = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    for seed in range(20):
        moved, _, _ = data.changed(p, np.zeros(40, np.uint8), np.random.default_rng(seed))
        if len(moved) == 40:
            before, after = (np.linalg.norm(x[:20] - x[20:], axis=1) for x in (p[:, :3], moved))
            ratio = after / before
            assert 0.95 <= ratio.min() and ratio.max() <= 1.05 and np.ptp(ratio) < 1e-4
