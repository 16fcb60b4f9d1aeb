# SPDX-License-Identifier: Apache-2.0
"""The programs of python/bench run, on inputs too small to time: they call what the package has today, and check what they compare."""
import importlib.util
import io
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
    done = subprocess.run([sys.executable, bench / program, *map(str, options)], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on_the_cpu(device):
    if device.type != "cpu":
        pytest.skip("a program that times the CPU")


def test_attention(device):
    on_the_cpu(device)
    assert run("attention.py", "--device", "cpu").count("differences at most") == 2


def test_flexgemm(device, tmp_path):
    """Its own side beside sums on weights as FlexGEMM has them; the decoder's rows are those of docs/decoder.md; without FlexGEMM it ends."""
    on_the_cpu(device)
    output = tmp_path / "cells.jsonl"
    run("flexgemm.py", "--device", "cpu", "--output", output)
    cells = [json.loads(line) for line in output.read_text().splitlines()]
    assert [cell["rows"] for cell in cells] == [640, 4608] and cells[0]["pairs"] > 640
    assert {"difference", "grad_x_difference", "grad_w_difference"} <= cells[0].keys()
    assert len(run("flexgemm.py", "--list", "--groups", "clouds,decoder").splitlines()) == 15 + 9
    if importlib.util.find_spec("flex_gemm") is None:
        assert "not installed" in run("flexgemm.py")
    for options, said in ((("--groups", "few,all"), "--groups has 'all'"), (("--samples", "0"), "--samples is 0")):
        with pytest.raises(AssertionError, match=said):
            run("flexgemm.py", "--list", *options)


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
    assert works[-1].startswith("convolution") and works[-1].endswith("with its map")
    assert any(work.startswith("BEV pooling") for work in works) != ("SciPy is not installed" in text)


def test_halos(device, tmp_path):
    """Parts of a small cloud: pairs are those that NumPy counts, and the model of a step reads the lines."""
    on_the_cpu(device)
    output = tmp_path / "halos.jsonl"
    run("halos.py", "--gyroid", 3000, "--parts", "1,2,8", "--output", output)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    fine = {line["parts"]: line for line in lines if line["level"] == 0}
    axis = 2 * np.pi / 25 * np.arange(25)
    x, y, z = np.meshgrid(axis, axis, axis, indexing="ij")
    slope = np.sqrt((np.cos(x) * np.cos(y) - np.sin(z) * np.sin(x)) ** 2 + (np.cos(y) * np.cos(z) - np.sin(x) * np.sin(y)) ** 2
                    + (np.cos(z) * np.cos(x) - np.sin(y) * np.sin(z)) ** 2)  # fmt: skip
    near = np.abs(np.sin(x) * np.cos(y) + np.sin(y) * np.cos(z) + np.sin(z) * np.cos(x)) < 0.75 * axis[1] * slope
    padded = np.pad(near, 1)
    pairs = sum(int((near & padded[i : i + 25, j : j + 25, k : k + 25]).sum()) for i in range(3) for j in range(3) for k in range(3))
    assert fine[1]["rows"] == near.sum() and fine[1]["pairs"] == pairs and fine[1]["ghosts_all"] == 0
    assert fine[2]["ghosts_all"] >= fine[2]["ghosts_most"] > 0 and fine[8]["owned_most"] >= near.sum() / 8
    for options, number in (("--single-layers",), 0), ((), 1):
        model = subprocess.run([sys.executable, root / "bench" / "scaling_model.py", "--counts", output, *options], capture_output=True, text=True, timeout=60)
        assert "50 layers, 21.7 M weights, 49 norms" in model.stdout and "1e10 voxels in one step" in model.stdout, model.stdout + model.stderr
        assert model.stdout.count("by the model |") == number


def test_tiles(device, tmp_path):
    """A job of four files, two of them copies at other places; what is done is not done again."""
    on_the_cpu(device)
    laspy = pytest.importorskip("laspy")
    pytest.importorskip("lazrs")
    options = "--out", tmp_path, "--points", 20000, "--files", 4, "--distinct", 2, "--tile", 16, "--width", 0.125, "--levels", 2, "--workers", 1
    first = run("tiles.py", *options)
    assert "LAZ to labels" in first and "; device none; 0 parts failed" in first
    lower = [laspy.read(tmp_path / "in" / f"{i:03d}.laz").header.mins[:2] for i in range(4)]
    side = (5000 / 20) ** 0.5
    np.testing.assert_allclose(lower, [[0, 0], [side, 0], [0, side], [side, side]], atol=0.1)
    written = {p.name: p.read_bytes() for p in (tmp_path / "job").glob("*.laz")}
    assert len(written) == 4
    (tmp_path / "job" / "002.laz").unlink()
    next((tmp_path / "job" / "parts").glob("*.npz")).unlink()
    again = run("tiles.py", *options, "--keep")
    assert "of a job that was begun before" in again
    assert {p.name: p.read_bytes() for p in (tmp_path / "job").glob("*.laz")}.keys() == written.keys()
    assert (laspy.read(tmp_path / "job" / "002.laz").classification == laspy.read(io.BytesIO(written["002.laz"])).classification).all()
