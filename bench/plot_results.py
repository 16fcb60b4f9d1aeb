#!/usr/bin/env python3
"""Draw the time of every case against its floor from the JSON lines of `spops bench`.

One panel per suite and mode: a point per line of the file, at (floor, median), coloured by variant.
Diagonals mark the floor and multiples of it. Needs matplotlib.
"""
import argparse
import json
import sys
from collections import defaultdict


def read_lines(paths, suite, dtype):
    panels = defaultdict(lambda: defaultdict(list))
    devices = set()
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as error:
                    sys.exit(f"{path}:{number}: {error}")
                if "floor_us" not in row:  # plan building has none
                    continue
                if suite not in (None, row["suite"]) or dtype not in (None, row["dtype"]):
                    continue
                panels[row["suite"], row["mode"]][row["variant"]].append(row)
                devices.add(row["device"])
    return panels, devices


def draw_panel(axes, title, variants):
    floors = [row["floor_us"] for rows in variants.values() for row in rows]
    ends = [min(floors) / 1.5, max(floors) * 1.5]
    for factor, style in ((1, "-"), (2, "--"), (10, ":")):
        axes.plot(ends, [factor * x for x in ends], style, color="0.6", linewidth=1, zorder=1)
        label = "floor" if factor == 1 else f"{factor} x"
        axes.annotate(label, (ends[1], factor * ends[1]), color="0.4", fontsize=8)
    for name in sorted(variants, key=lambda n: (n != "spops", n)):
        rows = variants[name]
        axes.errorbar(
            [row["floor_us"] for row in rows],
            [row["median_us"] for row in rows],
            yerr=[
                [max(row["median_us"] - row["p10_us"], 0) for row in rows],
                [max(row["p90_us"] - row["median_us"], 0) for row in rows],
            ],
            fmt="o" if name == "spops" else "x",
            markersize=6,
            linewidth=1,
            label=name,
            zorder=3 if name == "spops" else 2,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("floor, us")
    axes.set_ylabel("median, us (bars: 10th to 90th percentile)")
    axes.set_title(title)
    axes.legend(fontsize=8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", help="JSON lines of `spops bench --json` or --output")
    parser.add_argument("--output", default="bench.png", help="PNG, SVG or PDF (default: bench.png)")
    parser.add_argument("--suite", help="only this suite")
    parser.add_argument("--dtype", help="only this dtype")
    args = parser.parse_args()

    try:
        import matplotlib
    except ImportError:
        sys.exit("plot_results.py needs matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels, devices = read_lines(args.files, args.suite, args.dtype)
    if not panels:
        sys.exit("no line with a floor matches")
    figure, axes = plt.subplots(
        1, len(panels), figsize=(6.5 * len(panels), 5.5), squeeze=False, layout="constrained"
    )
    for ax, key in zip(axes[0], sorted(panels)):
        draw_panel(ax, f"{key[0]}, {key[1]}", panels[key])
    figure.suptitle(", ".join(sorted(devices)))
    figure.savefig(args.output, dpi=120)
    print(args.output)


if __name__ == "__main__":
    main()
