#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw how many times as fast as other libraries libspops is, from bench/results/beside_others.jsonl.

    plot_others.py [FILE] --out docs/images/beside_others.png     the chart (needs matplotlib)
    plot_others.py [FILE] --table                                 the numbers as a Markdown table

A line of the file is one measurement of both on one device. Lines of one operator, pass and other library are one bar:
the geometric mean of their ratios, with a thin line from the least to the greatest.
"""
import argparse
import json
import math
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FASTER, SLOWER, INK = "#2b6cb0", "#c05621", "#222222"


def read_bars(path):
    """[(operator, what, other, device, ratios)] in the order of the file"""
    bars = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                key = row["operator"], row["what"], row["other"], row["device"]
                bars.setdefault(key, []).append(row["theirs"] / row["ours"])
            except (ValueError, KeyError) as error:
                sys.exit(f"{path}:{number}: {error}")
    return [key + (ratios,) for key, ratios in bars.items()]


def mean(ratios):
    return math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))


def number(x):
    return f"{x:.2f}" if x < 9.995 else f"{x:.1f}"


def print_table(bars):
    print("| operator | beside | times as fast | cells: least to greatest |\n|---|---|---|---|")
    for operator, what, other, device, ratios in bars:
        told = f"{operator}, {what}" if what not in ("forward",) else operator
        spread = f"{len(ratios)}: {number(min(ratios))} to {number(max(ratios))}" if len(ratios) > 1 else "1"
        print(f"| {told}; {device} | {other} | {number(mean(ratios))} | {spread} |")


def draw(bars, out):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["font.family"] = "DejaVu Sans"
    rows, y, groups = [], 0.0, []
    for operator, what, other, device, ratios in bars:
        heading = f"{operator}  ({device.replace('NVIDIA ', '')})"
        if not groups or groups[-1][0] != heading:
            y += 1.15
            groups.append((heading, y))
        y += 1.0
        told = "the same" if rows and rows[-1][3] == (heading, other) else other
        rows.append((y, told + ("" if what == "forward" else f", {what}"), ratios, (heading, other)))
    figure, axes = pyplot.subplots(figsize=(10.5, 0.27 * y + 0.65))
    for at, label, ratios, _ in rows:
        value = mean(ratios)
        axes.barh(at, math.log2(value), height=0.72, color=FASTER if value >= 1 else SLOWER)
        if len(ratios) > 1:
            axes.plot([math.log2(min(ratios)), math.log2(max(ratios))], [at, at], color=INK, linewidth=1)
        end = max(math.log2(max(ratios)), 0)
        axes.text(end + 0.07, at, number(value), va="center", fontsize=9, color=INK)
        axes.text(-1.25, at, label, va="center", ha="right", fontsize=9, color=INK)
    for heading, at in groups:
        axes.text(-1.25, at, heading, va="center", ha="right", fontsize=9.5, fontweight="bold", color=INK)
    axes.axvline(0, color=INK, linewidth=1)
    ticks = [0.5, 1, 2, 4, 8, 16, 32]
    axes.set_xticks([math.log2(t) for t in ticks], [f"{t:g}" for t in ticks])
    axes.set_xlim(-1.15, 5.4)
    axes.set_ylim(y + 0.7, 0.6)
    axes.set_yticks([])
    axes.grid(axis="x", color="0.88")
    axes.set_axisbelow(True)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("their time over ours: libspops is faster right of 1, slower left of 1 (orange)", fontsize=9.5)
    figure.subplots_adjust(left=0.47, right=0.985, top=0.995, bottom=0.55 / (0.27 * y + 0.65))
    figure.savefig(out, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("file", nargs="?", default=os.path.join(HERE, "results", "beside_others.jsonl"))
    parser.add_argument("--out")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not arguments.table and not arguments.out:
        parser.error("expected --out or --table")
    bars = read_bars(arguments.file)
    if arguments.table:
        print_table(bars)
    if arguments.out:
        draw(bars, arguments.out)


main()
