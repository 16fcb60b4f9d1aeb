#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory and latency of whole networks: the tables of docs/sizes.md.

    sizes.py BUILD EXAMPLES --data SCANS [--backend cuda] [--output sizes.jsonl]

BUILD is a build of the library with its tools and tests, EXAMPLES where the examples are built. SCANS is a
folder with nuscenes_a.npy, nuscenes_b.npy and kitti_odom_a.npy (f32 [points, columns], x y z first). What is
not built is left out with a line; what fails makes the exit status 1. p50 and p99 are from the call until its
result is there, on the host's clock; `device` is the median without the host's part. Needs numpy.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

# Programs of examples with what they run; {} is the folder of scans.
EXAMPLES = [
    ("CenterPoint's encoder, by calls", "centerpoint", "--sweeps 10 {}/nuscenes_a.npy {}/nuscenes_b.npy --output"),
    ("MinkUNet 1.0", "minkunet", "--width 1 --scan {}/kitti_odom_a.npy --json"),
    ("Point Transformer V3", "ptv3", "--forward {}/kitti_odom_a.npy --output"),
]
failed = False


def fail(what, done):
    global failed
    failed = True
    print(f"{what}: ends with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}", file=sys.stderr)


def program(*places):
    found = [p for p in places if p.is_file()]
    if not found:
        print(f"{places[0]}: not built", file=sys.stderr)
    return str(found[0]) if found else None


def run_json(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        return fail(" ".join(map(str, command[:3])), done)
    return json.loads(done.stdout)


def sweeps(folder, count):
    """Sweeps in turn, a vehicle's way of 0.5 m between them, with the age of each point: x y z intensity age."""
    scans = [np.load(folder / f"nuscenes_{x}.npy")[:, :4].astype(np.float32) for x in "ab"]
    parts = []
    for k in range(count):
        s = scans[k % 2] - np.float32([0.5 * k, 0, 0, 0])
        parts.append(np.concatenate([s, np.full((len(s), 1), 0.05 * k, np.float32)], 1))
    return np.concatenate(parts)


def mb(n):
    return f"{n / 1e6:.1f}"


def ms(us):
    return f"{us / 1e3:.2f}" if us >= 1000 else f"{us / 1e3:.3f}"


def model_rows(args, folder, lines):
    spops = program(args.build / "tools/spops", args.build / "spops")
    make = program(args.build / "tests/make_model", args.build / "make_model")
    if spops is None or make is None:
        return
    model = folder / "centerpoint.onnx"
    subprocess.run([make, str(model)], check=True)
    for count in (1, 10):
        scan = folder / f"sweeps_{count}.npy"
        np.save(scan, sweeps(args.data, count))
        d = run_json(spops, "plan", model, "--points", 1, "--scan", scan, "--time", "--json", "--backend", args.backend)
        if d is None:
            continue
        d["what"] = f"CenterPoint's encoder from its file, {count} sweep{'s' if count > 1 else ''}, f16"
        slow = sorted((x for x in d["layers"]), key=lambda x: -x["us"])[:5]
        print(f"{d['what']}: slowest " + ", ".join(f"{x['name'] or x['op']} {x['us']:.0f} us" for x in slow), file=sys.stderr)
        lines.append(d)
    for setting, what in (("a", "16 x 44 x 59 to 128 x 128"), ("b", "32 x 88 x 118 to 360 x 360"), ("c", "16 x 44 x 118 to 200 x 200")):
        d = run_json(spops, "plan", "--setting", setting, "--time", "--no-floor", "--json", "--backend", args.backend)
        if d is not None:
            d["what"] = f"BEV pooling, {what}, 80 channels, f16"
            lines.append(d)


def example_rows(args, folder, lines):
    for what, name, arguments in EXAMPLES:
        path = program(args.examples / name)
        if path is None:
            continue
        output = folder / f"{name}.jsonl"
        command = [path, *arguments.replace("{}", str(args.data)).split(), str(output)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            fail(name, done)
            continue
        for d in map(json.loads, output.read_text().splitlines()):
            if "latency_of" in d:
                lines.append(d | {"what": f"{what}, {d['frame']}, {d['dtype']}"})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="a build of the library, with its tools and tests")
    parser.add_argument("examples", type=Path, help="where the examples are built")
    parser.add_argument("--data", type=Path, required=True, help="a folder with the scans of the test data")
    parser.add_argument("--backend", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--output", help="JSON lines, one a row, are added to this file")
    args = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as name:
        model_rows(args, Path(name), lines)
        example_rows(args, Path(name), lines)
    print("| what | points | weights | plans | features | input, output | scratch | together, MB | device, ms | p50, ms | p99, ms |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for d in lines:
        if "latency_of" in d:
            print(f"| {d['what']} | | | | | | | {mb(d['memory_bytes'])} | {ms(d['device_us'])} | {ms(d['latency_p50_us'])} | {ms(d['latency_p99_us'])} |")
        elif "weight_bytes" in d:
            print(f"| {d['what']} | {d['points']:,} | {mb(d['weight_bytes'])} | {mb(d['plan_bytes'])} | {mb(d['feature_bytes'])} | "
                  f"{mb(d['input_bytes'] + d['output_bytes'])} | {mb(d['scratch_bytes'])} | {mb(d['peak_bytes'])} | {ms(d['device_us'])} | {ms(d['p50_us'])} | {ms(d['p99_us'])} |")
        else:
            rest = d["peak_bytes"] - d["plan_bytes"] - d["scratch_bytes"]
            print(f"| {d['what']} | {d['points']:,} | | {mb(d['plan_bytes'])} | | {mb(rest)} | {mb(d['scratch_bytes'])} | {mb(d['peak_bytes'])} | "
                  f"{ms(d['device_us'])} | {ms(d['p50_us'])} | {ms(d['p99_us'])} |")
    if args.output:
        with open(args.output, "a", encoding="utf-8") as out:
            out.writelines(json.dumps({k: v for k, v in d.items() if k not in ("file", "lengths", "requested", "classes")}) + "\n" for d in lines)
    sys.exit(failed or not lines)


if __name__ == "__main__":
    main()
