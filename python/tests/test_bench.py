# SPDX-License-Identifier: Apache-2.0
"""The programs of python/bench run, on inputs too small to time: they call what the package has today, and check what they compare."""
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

root = Path(__file__).resolve().parents[2]
bench = root / "python" / "bench"
pytestmark = pytest.mark.skipif(not bench.is_dir(), reason="this is no checkout")


def run(program, *options):
    python = [str(root / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(python), "SPOPS_COMMIT": "test"}
    done = subprocess.run([sys.executable, bench / program, *map(str, options)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on_the_cpu(device):
    if device.type != "cpu":
        pytest.skip("a program that times the CPU")


def test_attention(device):
    on_the_cpu(device)
    assert run("attention.py", "--device", "cpu").count("differences at most") == 2


def test_cpu(device, tmp_path):
    """Every part but SpUNet, whose sources are a checkout of another project."""
    on_the_cpu(device)
    rig = json.loads((root / "data" / "rig_six_cameras.json").read_text())
    rig["lidar2ego"] = np.eye(4).tolist()
    for camera in rig["cameras"]:
        camera["cam2lidar"] = camera["cam2ego"]
    (tmp_path / "rig.json").write_text(json.dumps(rig))
    scan = root / "examples" / "scan.npy"
    output = tmp_path / "rows.jsonl"
    text = run("cpu.py", scan, "--samples", 1, "--rig", tmp_path / "rig.json", "--output", output)
    works = [json.loads(line)["work"] for line in output.read_text().splitlines()]
    assert works[:2] == ["voxels of 400 points, means", "radius search, 400 points"]
    assert works[-1] == "convolution 128 to 128, with its map"
    assert any(work.startswith("BEV pooling") for work in works) != ("SciPy is not installed" in text)
