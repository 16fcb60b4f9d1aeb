#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time the networks of the examples, part by part, and draw where the time goes.

    networks.py BUILD --data SCANS --output networks.jsonl --picture networks.png

BUILD is where the examples are built (`cmake -S examples -B BUILD`). Each network runs on its own; what it
measures is added to the output in one format, a JSON object a part: network, frame, device, dtype, part, us,
floor_us, kernels. The part `whole` is all of a frame at once, on CUDA one graph. Without --data, or with
--small, networks run the small frames that they make themselves. A network that is not built is left out,
one that fails makes the exit status 1. The picture needs matplotlib.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

# Program; arguments with data, {} being its folder; without data; the option that names the output.
NETWORKS = [
    ("minkunet", "--width 1 --scan {}/kitti_odom_a.npy", "", "--output"),
    ("centerpoint", "--sweeps 10 {}/nuscenes_a.npy {}/nuscenes_b.npy", "--sweeps 2", "--output"),
    ("spconv_benchmark", "{}/spconv_benchmark_pc.npy --copies 8", "", "--output"),
    ("flash3d", "{}/kitti_odom_a.npy", None, ""),
    ("ptv3", "{}/kitti_odom_a.npy", "--small --voxel 0.4 --layers", "--output"),
    ("dsvt", "{}/kitti_odom_a.npy", "--small --voxel 0.8 --layers", "--output"),
    ("decoder", "--size 1024", "--size 32 --width 0.125", "--output"),
    ("dit_block", "--tokens 32768", None, "--output"),
]


def run(program, arguments, option, seconds):
    """The lines of a network's parts."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "lines"
        command = [str(program), *arguments.split(), *option.split(), str(output)]
        print(" ".join(command[:-1]), flush=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        if done.returncode != 0 or not output.exists():
            sys.stderr.write(done.stdout[-1000:] + done.stderr[-1000:])
            return None
        return [r for r in map(json.loads, output.read_text().splitlines()) if "network" in r]


def print_table(rows):
    for r in rows:
        if r["part"] == "whole":
            print(f"  {r['frame']}, {r['dtype']}, {r['device']}: {r['us'] / 1000:.3f} ms, "
                  f"floor {r['floor_us'] / 1000:.3f}, {r['kernels']} kernels")
        else:
            print(f"    {r['part']:<22}{r['us'] / 1000:10.3f}{r['floor_us'] / 1000:10.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="where the examples are built")
    parser.add_argument("--data", help="a folder with the scans of the test data")
    parser.add_argument("--small", action="store_true", help="the frames that networks make themselves")
    parser.add_argument("--only", help="these networks, separated by commas")
    parser.add_argument("--seconds", type=float, default=300, help="limit of one network (default 300)")
    parser.add_argument("--output", help="JSON lines, one a part, are added to this file")
    parser.add_argument("--picture", help="PNG, SVG or PDF: where the time goes")
    args = parser.parse_args()
    lines = []
    failed = False
    for name, with_data, without, option in NETWORKS:
        program = args.build / name
        arguments = without if args.small or args.data is None else with_data.replace("{}", args.data)
        if (args.only and name not in args.only.split(",")) or arguments is None:
            continue
        if not program.exists():
            print(f"{program}: not built")
            continue
        rows = run(program, arguments, option, args.seconds)
        failed |= not rows
        print_table(rows or [])
        lines += rows or []
    if args.output:
        with open(args.output, "a", encoding="utf-8") as out:
            out.writelines(json.dumps(r) + "\n" for r in lines)
    if args.picture:
        import plot_results
        plot_results.save_networks(lines, args.picture)
        print(args.picture)
    return failed


if __name__ == "__main__":
    sys.exit(main())
