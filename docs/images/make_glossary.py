#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw glossary.svg: how points become cells, segments and a plan. Needs Python alone.

    python3 docs/images/make_glossary.py > docs/images/glossary.svg
"""
# x, y of each point, in cells of a grid of 3 x 2; cell = y * 3 + x. Cell 1 stays empty.
POINTS = [(2.3, 0.3), (0.6, 0.7), (0.3, 1.6), (2.7, 0.7), (1.5, 1.4), (0.3, 0.2), (2.2, 0.8), (2.5, 1.5)]
NX, NY, SIDE = 3, 2, 66
COLOURS = ["#1f77b4", "#9e9e9e", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd"]  # of a cell
INK, FAINT = "#222222", "#bdbdbd"

parts = []


def text(x, y, s, size=13, colour=INK, anchor="middle", weight="normal"):
    parts.append(
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{s}</text>'
    )


def rect(x, y, w, h, fill="none", stroke=FAINT):
    parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" stroke="{stroke}"/>')


def box(x, y, s, colour=INK, w=26, h=24):
    rect(x, y, w, h, "#ffffff", colour)
    text(x + w / 2, y + h / 2 + 5, s, colour=colour)


def heading(x, title, line):
    text(x, 26, title, 16, weight="bold", anchor="start")
    text(x, 46, line, 12, "#555555", anchor="start")


def arrow(x, y=150):
    parts.append(f'<path d="M{x} {y} h24 m-8 -6 l8 6 l-8 6" fill="none" stroke="{INK}" stroke-width="2"/>')


def cell_of(point):
    return int(point[1]) * NX + int(point[0])


def draw_points(left, top, with_cells):
    for y in range(NY):
        for x in range(NX):
            cell, cx, cy = y * NX + x, left + x * SIDE, top + (NY - 1 - y) * SIDE
            if with_cells:
                rect(cx, cy, SIDE, SIDE, COLOURS[cell] + "22", INK)
                text(cx + SIDE - 5, cy + SIDE - 6, cell, 12, "#555555", "end")
    for number, point in enumerate(POINTS):
        cx, cy = left + point[0] * SIDE, top + (NY - point[1]) * SIDE
        colour = COLOURS[cell_of(point)] if with_cells else INK
        parts.append(f'<circle cx="{cx:g}" cy="{cy:g}" r="4" fill="{colour}"/>')
        text(cx + 7, cy - 4, number, 12, colour, "start")


def main():
    num_cells = NX * NY
    segments = [[t for t, p in enumerate(POINTS) if cell_of(p) == c] for c in range(num_cells)]

    heading(10, "points", "rows of features, numbered")
    draw_points(10, 84, False)
    arrow(222)
    heading(262, "cells (voxels)", "which cell a point falls into")
    draw_points(262, 84, True)
    arrow(476)
    heading(516, "segments", "one per cell: its points, in order")
    for c, terms in enumerate(segments):
        y = 66 + c * 29
        text(540, y + 17, c, 13, COLOURS[c], "end", "bold")
        for i, t in enumerate(terms):
            box(552 + i * 30, y, t, COLOURS[c])
        if not terms:
            text(552, y + 17, "empty", 12, "#777777", "start")
    arrow(700)
    heading(742, "plan", "the segments as arrays, and who does what")
    offsets = [sum(len(s) for s in segments[:c]) for c in range(num_cells + 1)]
    text(742, 82, "offsets", 12, anchor="start")
    for c, o in enumerate(offsets):
        box(742 + c * 30, 88, o, COLOURS[c] if c < num_cells else INK)
    text(742, 136, "row of each term", 12, anchor="start")
    terms = [(t, c) for c, s in enumerate(segments) for t in s]
    for i, (t, c) in enumerate(terms):
        box(742 + i * 30, 142, t, COLOURS[c])
    text(742, 190, "work schedule: longest segments first", 12, anchor="start")
    order = sorted((c for c in range(num_cells)), key=lambda c: -len(segments[c]))
    for i, c in enumerate(order):
        box(742 + i * 44, 196, f"seg {c}", COLOURS[c], 40)

    print('<svg xmlns="http://www.w3.org/2000/svg" width="1110" height="250" viewBox="0 0 1110 250" '
          'font-family="DejaVu Sans, Verdana, sans-serif">')
    rect(0, 0, 1110, 250, "#ffffff", "none")
    print(parts.pop())
    print("\n".join(parts))
    print("</svg>")


main()
