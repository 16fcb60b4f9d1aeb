#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw the time of every case against its floor from the JSON lines of `spops bench`.

One panel per suite and mode: a point per line of the file, at (floor, median), coloured by variant.
Diagonals mark the floor and multiples of it.

With --configurations, BEV pooling alone: a row per map and width, in it a dot per dtype for the
library, an upright line for its floor (bytes at the rate of memory), a dotted one for the rows it
gathers (at the rate of the L2, where the lines have it), and a cross for the fastest baseline. Where
lines of several runs tell the same, the latest counts.

With --ablation, sparse convolution on the layers of a network (`spops bench conv --ablation`): the
time of each layer by each way of running it, and beside that how much faster the products are in
adaptive groups than separately, and the movement vectorised, local and narrow than scalar in f32.

With --networks, the networks of the examples (`bench/networks.py`): a bar for every frame, cut into its
parts by their time, and in each part its floor.

Needs matplotlib.
"""
import argparse
import json
import os
import re
import sys
from collections import defaultdict


DTYPES = ["f32", "f16", "bf16", "f8e4m3", "f8e5m2", "f4e2m1", "nvfp4"]  # in this order, top down
MODES = ["hot", "cold"]


def lines_with_floor(paths):
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as error:
                    sys.exit(f"{path}:{number}: {error}")
                if "floor_us" in row:  # plan building has none
                    yield row


def read_panels(paths, suite, dtype):
    panels = defaultdict(lambda: defaultdict(list))
    devices = set()
    for row in lines_with_floor(paths):
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


# ---- Configurations of BEV pooling --------------------------------------------------------------


def rig_of(row):
    given = re.search(r"--rig[ =](\S+)", row.get("command", ""))
    return os.path.splitext(os.path.basename(given.group(1)))[0] if given else ""


def series_of(row):
    """The dtype of features, and whether the output has the same 8 bits"""
    return row["dtype"] + (" throughout" if row.get("out_dtype") == row["dtype"] else "")


def read_configurations(paths, direction, dtype):
    """{(rig, map, cols): {(mode, series): {variant: line}}}"""
    cases = defaultdict(lambda: defaultdict(dict))
    devices = set()
    for row in lines_with_floor(paths):
        case = re.fullmatch(r"map (\S+) " + re.escape(direction), row["case"])
        if row["suite"] != "bev" or not case or dtype not in (None, row["dtype"]):
            continue
        variants = cases[rig_of(row), case.group(1), row["cols"]][row["mode"], series_of(row)]
        known = variants.get(row["variant"])
        if known is None or known["date"] <= row["date"]:
            variants[row["variant"]] = row
        devices.add(row["device"])
    return cases, devices


def floor_of(lines):
    return max(line["floor_us"] for variants in lines.values() for line in variants.values())


def label_of(case):
    rig, name, cols = case
    return "%s, C = %d%s" % (name, cols, " (%s)" % rig if rig else "")


def draw_case(axes, top, variants_of, dtypes, mode, colours, seen):
    """One row: dtypes one below the other, the first at `top`."""
    for i, dtype in enumerate(dtypes):
        variants = variants_of.get((mode, dtype))
        if not variants:
            continue
        y = top - i
        own = variants.get("spops")
        others = [line for name, line in variants.items() if name != "spops"]
        any_line = own or others[0]
        axes.plot([any_line["floor_us"]] * 2, [y - 0.45, y + 0.45], color=colours[dtype])
        if any_line.get("gather_floor_us"):
            axes.plot(
                [any_line["gather_floor_us"]] * 2, [y - 0.45, y + 0.45], ":", color=colours[dtype]
            )
        if own:
            axes.plot(own["median_us"], y, "o", markersize=4, color=colours[dtype])
        if others:
            best = min(line["median_us"] for line in others)
            axes.plot(best, y, "x", markersize=4, color="0.55")
        seen.add(dtype)


def draw_configurations(plt, cases, output, title):
    order = sorted(cases, key=lambda case: (floor_of(cases[case]), case), reverse=True)
    modes = [m for m in MODES if any(m == mode for case in cases.values() for mode, _ in case)]
    used = {dtype for case in cases.values() for _, dtype in case}
    dtypes = [d for d in DTYPES if d in used] + sorted(used - set(DTYPES))
    colours = {dtype: "C%d" % i for i, dtype in enumerate(dtypes)}
    step = len(dtypes) + 1
    figure, axes = plt.subplots(
        1,
        len(modes),
        figsize=(5.5 * len(modes), 1.2 + 0.1 * step * len(order)),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    seen = set()
    for ax, mode in zip(axes[0], modes):
        for k, case in enumerate(order):
            top = k * step + len(dtypes)
            draw_case(ax, top, cases[case], dtypes, mode, colours, seen)
            if k % 2:
                ax.axhspan(k * step + 0.5, (k + 1) * step + 0.5, color="0.95", zorder=0)
        ax.set_xscale("log")
        ax.set_xlabel("us, %s" % mode)
        ax.grid(axis="x", color="0.85", linewidth=0.5)
        ax.set_yticks([k * step + (step + 1) / 2 for k in range(len(order))])
        ax.set_yticklabels([label_of(case) for case in order], fontsize=8)
        ax.set_ylim(0.5, len(order) * step + 0.5)
    marks = [
        plt.Line2D([], [], color=colours[d], marker="o", markersize=4, label=d)
        for d in dtypes
        if d in seen
    ]
    marks += [
        plt.Line2D([], [], color="0.3", label="floor: memory"),
        plt.Line2D([], [], color="0.3", linestyle=":", label="rows from L2"),
        plt.Line2D([], [], color="0.55", marker="x", linestyle="", label="best baseline"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), fontsize=8)
    figure.suptitle(title, fontsize=10)
    figure.savefig(output, dpi=120)


# ---- The layers of a network --------------------------------------------------------------------


def read_ablation(paths, mode):
    """{case: {variant: microseconds}}, in the order of the file"""
    cases = {}
    devices = set()
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            for line in filter(str.strip, lines):
                row = json.loads(line)
                if row["suite"] == "conv_ablation" and row["mode"] == mode:
                    cases.setdefault(row["case"], {})[row["variant"]] = row["median_us"]
                    devices.add("%s, %s" % (row["device"], row["dtype"]))
    return cases, devices


def draw_ablation(plt, cases, output, title):
    parts = (", movement", ", products")
    layers = [c for c in cases if not c.endswith(parts)]
    figure, (times, gains) = plt.subplots(
        1,
        2,
        figsize=(12, 1.5 + 0.26 * len(layers)),
        sharey=True,
        layout="constrained",
        gridspec_kw={"width_ratios": [3, 2]},
    )
    rows = range(len(layers), 0, -1)
    variants = list(dict.fromkeys(v for c in layers for v in cases[c]))
    for i, variant in enumerate(variants):
        points = [(cases[c][variant], y) for c, y in zip(layers, rows) if variant in cases[c]]
        times.plot(*zip(*points), "o" if i < 7 else "x", markersize=5, label=variant)
    times.set_xscale("log")
    times.set_title("us", fontsize=9)
    times.set_yticks(list(rows))
    times.set_yticklabels(layers, fontsize=8)
    for case, (part, slow, fast), mark in (
        (parts[1], ("products", "separate", "adaptive"), "s"),
        (parts[0], ("movement", "scalar f32, tap by tap", "vectorised, local"), "D"),
    ):
        points = [
            (cases[c + case][slow] / cases[c + case][fast], y)
            for c, y in zip(layers, rows)
            if cases.get(c + case, {}).get(fast) and slow in cases[c + case]
        ]
        if points:
            gains.plot(*zip(*points), mark, markersize=5, label="%s: %s / %s" % (part, slow, fast))
    gains.axvline(1, color="0.6", linewidth=1)
    gains.set_title("times faster", fontsize=9)
    for ax in (times, gains):
        ax.grid(color="0.9", linewidth=0.5)
        ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.07), ncols=4)
    figure.suptitle(title, fontsize=10)
    figure.savefig(output, dpi=120)


# ---- Networks -------------------------------------------------------------------------------------


def read_networks(rows):
    """{(network, frame, dtype): {part: line}}, in the order of the lines; the last of each counts"""
    frames = {}
    for row in rows:
        # Stages of a network, and all layers, are the same time as its layers by kind.
        if "network" not in row or re.search(r" ((enc|dec)\d+|head|all layers)$", row["part"]):
            continue
        part = re.sub(r"^(frame|forward) ", "", row["part"])
        frames.setdefault((row["network"], row["frame"], row["dtype"]), {})[part] = row
    return {key: parts for key, parts in frames.items() if "whole" in parts and len(parts) > 1}


def draw_bar(ax, y, parts, colours):
    """Parts side by side, as shares of their sum; the dark strip in each is as long as its floor."""
    total = sum(row["us"] for name, row in parts.items() if name != "whole")
    left = 0.0
    for name, row in parts.items():
        if name == "whole":
            continue
        share = 100 * row["us"] / total
        colour = colours[name]
        ax.barh(y, share, left=left, height=0.7, color=colour, edgecolor="white", linewidth=0.8)
        floor = min(share, 100 * row["floor_us"] / total)
        ax.barh(y - 0.25, floor, left=left, height=0.2, color="0.15", alpha=0.65)
        if share > 4:
            ax.annotate("%.0f" % share, (left + share / 2, y + 0.1), ha="center", va="center", fontsize=7)
        left += share
    whole = parts["whole"]
    ax.annotate(" %.2f ms" % (whole["us"] / 1000), (100, y), va="center", fontsize=8)


def save_networks(rows, output):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    frames = read_networks(rows)
    if not frames:
        sys.exit("no line of a network matches")
    names = list(dict.fromkeys(n for parts in frames.values() for n in parts if n != "whole"))
    map_of = plt.get_cmap("tab20")
    colours = {name: map_of(i % 20) for i, name in enumerate(names)}
    figure, ax = plt.subplots(figsize=(11, 1.8 + 0.5 * len(frames)), layout="constrained")
    for i, (key, parts) in enumerate(frames.items()):
        draw_bar(ax, len(frames) - i, parts, colours)
    ax.set_yticks(range(len(frames), 0, -1))
    ax.set_yticklabels(["%s, %s" % key[:2] for key in frames], fontsize=8)
    ax.set_xlim(0, 108)
    ax.set_xlabel("share of the parts' time, %; at the end the whole frame; dark: the floor", fontsize=8)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    marks = [plt.Rectangle((0, 0), 1, 1, color=colours[name], label=name) for name in names]
    figure.legend(handles=marks, loc="outside lower center", ncols=6, fontsize=8)
    kinds = sorted({"%s, %s" % (p["whole"]["device"], p["whole"]["dtype"]) for p in frames.values()})
    figure.suptitle("Where the time of networks goes, " + "; ".join(kinds), fontsize=10)
    figure.savefig(output, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", help="JSON lines of `spops bench --json` or --output")
    parser.add_argument("--output", default="bench.png", help="PNG, SVG or PDF (default: bench.png)")
    parser.add_argument("--suite", help="only this suite")
    parser.add_argument("--dtype", help="only this dtype")
    parser.add_argument(
        "--configurations", action="store_true", help="BEV pooling, a row per map and width"
    )
    parser.add_argument(
        "--direction", default="forward", help="with --configurations: forward or backward"
    )
    parser.add_argument("--ablation", action="store_true", help="the layers of a network")
    parser.add_argument("--networks", action="store_true", help="parts of the examples' networks")
    parser.add_argument("--mode", default="hot", help="with --ablation: hot or cold")
    args = parser.parse_args()

    try:
        import matplotlib
    except ImportError:
        sys.exit("plot_results.py needs matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    if args.networks:
        rows = []
        for path in args.files:
            with open(path, encoding="utf-8") as lines:
                rows += [json.loads(line) for line in filter(str.strip, lines)]
        save_networks(rows, args.output)
        print(args.output)
        return
    if args.ablation:
        cases, devices = read_ablation(args.files, args.mode)
        if not cases:
            sys.exit("no line of an ablation matches")
        title = "MinkUNet, forward, %s, %s" % (args.mode, "; ".join(sorted(devices)))
        draw_ablation(plt, cases, args.output, title)
        print(args.output)
        return
    if args.configurations:
        cases, devices = read_configurations(args.files, args.direction, args.dtype)
        if not cases:
            sys.exit("no line of BEV pooling %s matches" % args.direction)
        title = "BEV pooling %s, %s" % (args.direction, ", ".join(sorted(devices)))
        draw_configurations(plt, cases, args.output, title)
        print(args.output)
        return
    panels, devices = read_panels(args.files, args.suite, args.dtype)
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
