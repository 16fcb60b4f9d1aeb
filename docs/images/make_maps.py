#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw kernel_map.svg (what a kernel map holds) and patches.svg (how an order becomes patches). Needs Python alone.

    python3 docs/images/make_maps.py docs/images
"""
import os
import sys

COLOURS = ["#1f77b4", "#2ca02c", "#ff7f0e", "#9467bd"]
INK, GREY, FAINT = "#222222", "#555555", "#bdbdbd"
VOXELS = [(0, 1), (1, 1), (1, 2), (2, 2), (3, 1), (3, 2), (4, 0)]  # x, y of each row
CHOSEN = 3  # the row whose window is drawn
CLOUD = [(0, 0), (1, 0), (0, 1), (2, 1), (3, 0), (3, 1), (1, 2), (0, 3), (1, 3), (2, 2), (3, 3)]
PATCH_ROWS = 4


class Picture:
    def __init__(self):
        self.parts = []

    def text(self, x, y, s, size=13, colour=INK, anchor="middle", weight="normal"):
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
                          f'font-weight="{weight}">{s}</text>')

    def rect(self, x, y, w, h, fill="none", stroke=FAINT, width=1.0):
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" stroke="{stroke}" '
                          f'stroke-width="{width:g}"/>')

    def path(self, points, colour, width=2.0):
        self.parts.append('<path d="M' + " L".join(f"{x:g} {y:g}" for x, y in points) + f'" fill="none" stroke="{colour}" '
                          f'stroke-width="{width:g}"/>')

    def heading(self, x, title, line):
        self.text(x, 24, title, 16, weight="bold", anchor="start")
        self.text(x, 43, line, 12, GREY, anchor="start")

    def write(self, path, width, height):
        with open(path, "w", encoding="utf-8") as out:
            out.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                      f'viewBox="0 0 {width} {height}" font-family="DejaVu Sans, sans-serif">\n'
                      f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n' + "\n".join(self.parts) + "\n</svg>\n")


def kernel_map(path):
    p, side, left, top, nx, ny = Picture(), 44, 16, 64, 6, 4
    p.heading(left, "Voxels", "each has a row; here row 3 and its window")
    place = {at: row for row, at in enumerate(VOXELS)}

    def corner(x, y):
        return left + x * side, top + (ny - 1 - y) * side

    for x in range(nx):
        for y in range(ny):
            row = place.get((x, y))
            at = corner(x, y)
            p.rect(*at, side, side, "#1f77b422" if row is not None else "none")
            if row is not None:
                p.text(at[0] + side / 2, at[1] + side / 2 + 5, row, 15, weight="bold")
    cx, cy = VOXELS[CHOSEN]
    at = corner(cx - 1, cy + 1)
    p.rect(at[0] + 2, at[1] + 2, 3 * side - 4, 3 * side - 4, stroke="#d62728", width=2.5)
    x0 = left + nx * side + 40
    p.heading(x0, "Taps", "of a 3 x 3 kernel")
    for tx in range(3):
        for ty in range(3):
            at = (x0 + tx * side, top + (2 - ty) * side)
            p.rect(*at, side, side, stroke="#d62728")
            p.text(at[0] + side / 2, at[1] + side / 2 + 5, tx * 3 + ty, 14, "#d62728")
    p.text(x0, top + 3 * side + 20, "x to the right, y up", 11, GREY, "start")
    x0 += 3 * side + 44
    p.heading(x0, "Neighbour table", "the input row of each output row and tap")
    cell, high = 26, 21
    for tap in range(9):
        p.text(x0 + 46 + tap * cell, top - 2, tap, 12, "#d62728")
    pairs = [[] for _ in range(9)]
    for row, (x, y) in enumerate(VOXELS):
        p.text(x0 + 10, top + 15 + row * high, row, 12, weight="bold")
        for tap in range(9):
            found = place.get((x + tap // 3 - 1, y + tap % 3 - 1))
            at = (x0 + 33 + tap * cell, top + 2 + row * high)
            p.rect(*at, cell, high, "#fde8e8" if row == CHOSEN else "none")
            p.text(at[0] + cell / 2, at[1] + 15, "" if found is None else found, 12)
            if found is not None:
                pairs[tap].append((found, row))
    x0 += 46 + 9 * cell + 26
    p.heading(x0, "Pairs by tap", "(input row, output row): the rulebook")
    for tap in range(9):
        p.text(x0 + 8, top + 12 + tap * high, tap, 12, "#d62728")
        p.text(x0 + 28, top + 12 + tap * high, "  ".join(f"({a}, {b})" for a, b in pairs[tap]) or "none", 12, anchor="start")
    p.write(path, x0 + 350, top + 4 * side + 40)


def patches(path):
    p, side, left, top, n = Picture(), 50, 16, 64, 4

    def code(at):
        return sum(((at[0] >> b & 1) << (2 * b + 1)) | ((at[1] >> b & 1) << (2 * b)) for b in range(2))

    order = sorted(range(len(CLOUD)), key=lambda row: code(CLOUD[row]))
    p.heading(left, "Rows along a curve", "Z-order; the colour is the patch")
    for x in range(n):
        for y in range(n):
            p.rect(left + x * side, top + (n - 1 - y) * side, side, side)

    def middle(row):
        return left + (CLOUD[row][0] + 0.5) * side, top + (n - CLOUD[row][1] - 0.5) * side

    p.path([middle(row) for row in order], FAINT, 2)
    for i, row in enumerate(order):
        x, y = middle(row)
        colour = COLOURS[i // PATCH_ROWS]
        p.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="13" fill="#ffffff" stroke="{colour}" stroke-width="2.5"/>')
        p.text(x, y + 5, row, 13)
    x0 = left + n * side + 44
    p.heading(x0, "Patches of 4", "every query attends to every key of its patch")
    for patch in range((len(order) + PATCH_ROWS - 1) // PATCH_ROWS):
        queries = order[patch * PATCH_ROWS:(patch + 1) * PATCH_ROWS]
        lacking = PATCH_ROWS - len(queries)
        borrowed = order[patch * PATCH_ROWS - lacking:patch * PATCH_ROWS] if lacking else []
        y, colour = top + patch * 66, COLOURS[patch]
        for line, (what, rows) in enumerate((("queries", queries), ("keys", queries + borrowed))):
            p.text(x0, y + 17 + line * 28, what, 12, GREY, "start")
            for i, row in enumerate(rows):
                own = row in queries
                p.rect(x0 + 66 + i * 32, y + line * 28, 28, 24, colour + "22" if own else "#ffffff",
                       colour if own else COLOURS[patch - 1], 1 if own else 2)
                p.text(x0 + 80 + i * 32, y + 17 + line * 28, row, 13)
        if borrowed:
            p.text(x0 + 66 + PATCH_ROWS * 32 + 10, y + 45, "borrowed from the patch before: a key, no query", 12, GREY, "start")
    p.write(path, x0 + 560, top + n * side + 20)


def main():
    kernel_map(os.path.join(sys.argv[1], "kernel_map.svg"))
    patches(os.path.join(sys.argv[1], "patches.svg"))


main()
