#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model of a training step of MinkUNet over many GPUs: the tables of docs/scaling.md.

    scaling_model.py [--measured ranks.jsonl] [--counts halos.jsonl] [--cloud NAME]

Counted: rows of levels, pairs, ghosts and neighbours of parts, from python/bench/halos.py. Products, bytes and
exchanges of a step follow from the layers of examples/ranks. Times are modelled with the parameters below, each with
its source; --measured (lines of bench/scaling.py on GPUs) puts measured ones in their place and says which.
"""

import argparse
import json
import sys
from pathlib import Path

# value, unit, where it is from
PARAMETERS = {
    "rate 32": (130, "TFLOP/s of a convolution with 32 channels", "H200, conv_indoor, docs/performance.md: 42 us"),
    "rate 64": (254, "TFLOP/s, 64", "H100, gyroid, docs/decoder.md"),
    "rate 128": (373, "TFLOP/s, 96 and 128", "the same"),
    "rate 256": (487, "TFLOP/s, 256 and more", "the same"),
    "backward": (2.56, "times the forward convolutions", "H100, docs/spconv-benchmark.md: 5,240 us and 2,045"),
    "copy": (2989, "GB/s that norms, sums and copies move", "H100, bench/results/maps_large.jsonl"),
    "share": (0.7, "of that rate that they reach", "assumed"),
    "latency": (20, "us of an exchange between two GPUs", "assumed"),
    "latency of more": (1.5, "us for each rank more in an exchange", "assumed"),
    "nvlink": (140, "GB/s from a GPU, large messages", "two H200: 283 GB/s both ways at 256 MB"),
    "nvlink small": (50, "GB/s from a GPU, messages up to 16 MB", "two H200: 113 GB/s both ways at 16 MB"),
    "network": (40, "GB/s from a GPU to another machine", "assumed: 400 Gb/s a GPU, four fifths of it"),
    "network latency": (30, "us of an exchange between machines", "assumed"),
    "plans": (900, "bytes of sets, maps and plans a voxel on a GPU", "assumed from what maps hold; CPU: counted by examples/ranks"),
    "device": (78, "GB of a GPU", "H100"),
    "partition": (0.43, "us of one core a voxel, partition", "examples/ranks, gyroid of 2 M, an EPYC that others used"),
    "halo": (0.72, "us of one core a voxel, levels and halos", "the same"),
}
LEVELS, INPUTS, OUTPUTS, BYTES, GPUS_OF_A_HOST = 5, 8, 24, 2, 8


def layers():
    """(relation, level, channels in, out, norm, residual, reads the input) of examples/ranks at width 1."""
    cs, last, out = [32, 32, 64, 128, 256, 256, 128, 96, 96], LEVELS - 1, []

    def block(level, a, b):
        out.append(("within", level, a, b, True, False, False))
        if a != b:
            out.append(("pointwise", level, a, b, True, False, False))
        out.append(("within", level, b, b, True, True, False))

    out.append(("within", 0, INPUTS, cs[0], True, False, True))
    out.append(("within", 0, cs[0], cs[0], True, False, False))
    for level in range(1, LEVELS):
        out.append(("down", level, cs[level - 1], cs[level - 1], True, False, False))
        block(level, cs[level - 1], cs[level])
        block(level, cs[level], cs[level])
    x = cs[last]
    for level in reversed(range(last)):
        out.append(("up", level, x, cs[8 - level], True, False, False))
        block(level, cs[8 - level] + cs[level], cs[8 - level])
        block(level, cs[8 - level], cs[8 - level])
        x = cs[8 - level]
    out.append(("pointwise", 0, x, OUTPUTS, False, False, False))
    return out


TAPS = {"within": 27, "down": 8, "up": 8, "pointwise": 1}
WEIGHTS = sum(TAPS[r] * a * b for r, _, a, b, *_ in layers())
NORMS = sum(1 for x in layers() if x[4])


class Cloud:
    """Counts of a cloud: rows and pairs by level for each finest voxel, ghosts of a part."""

    def __init__(self, lines, name, cell_log2=4):
        mine = [x for x in lines if x["cloud"] == name and x["cell_log2"] == cell_log2]
        one = {x["level"]: x for x in mine if x["parts"] == 1}
        self.name, self.voxels = name, one[0]["rows"]
        self.rows = [one[n]["rows"] / self.voxels for n in range(LEVELS)]
        self.pairs = [one[n]["pairs"] / one[n]["rows"] for n in range(LEVELS)]
        # Ghosts of a part are a border: so many times the root of its rows, the mean of all numbers of parts from 8 on.
        parts = [x for x in mine if x["parts"] >= 8]
        self.border = [mean(x["ghosts_all"] / x["parts"] / (x["rows"] / x["parts"]) ** 0.5 for x in parts if x["level"] == n) for n in range(LEVELS)]
        two = [x for x in mine if x["parts"] == 2]
        self.border_of_two = [mean(x["ghosts_all"] / 2 / (x["rows"] / 2) ** 0.5 for x in two if x["level"] == n) for n in range(LEVELS)]
        self.neighbours = max(x["from_ranks_most"] for x in mine)

    def ghosts(self, level, voxels, ranks):
        border = self.border_of_two if ranks == 2 else self.border
        return 0 if ranks == 1 else border[level] * (voxels * self.rows[level]) ** 0.5


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def rate_of(p, channels):
    return 1e12 * p["rate 32" if channels < 64 else "rate 64" if channels < 96 else "rate 128" if channels < 256 else "rate 256"]


def pairs_of(cloud, relation, level):
    """For each row of the layer's level. Between levels each fine row has one pair."""
    return {"within": cloud.pairs[level], "down": cloud.rows[level - 1] / cloud.rows[level], "up": 1, "pointwise": 1}[relation]


def compute(p, cloud, voxels):
    """Seconds of what a rank computes: convolutions, and what moves rows (norms, activations, sums of gradients)."""
    products = moved = flop = 0.0
    for relation, level, a, b, norm, residual, is_first in layers():
        rows = voxels * cloud.rows[level]
        work = 2 * rows * pairs_of(cloud, relation, level) * a * b
        flop += work * (3 if not is_first else 2)
        products += work / rate_of(p, min(a, b)) * (1 + p["backward"] * (0.6 if is_first else 1))
        forward = (3 if norm else 0) + (5 if residual else 0)  # times the row is read or written
        backward = (5 if norm else 2) + (6 if residual else 0)
        moved += rows * BYTES * (b * (forward + backward) + a * 3)  # a gradient is written, then added to another
    return products, moved / (1e9 * p["copy"] * p["share"]), flop


def step(p, cloud, voxels, ranks, chunks=8):
    """Parts of a step in seconds, bytes and exchanges, by name."""
    inside = ranks <= GPUS_OF_A_HOST
    latency = 1e-6 * (p["latency"] if inside else p["network latency"])
    more, rate, small = 1e-6 * p["latency of more"], 1e9 * p["nvlink" if inside else "network"], 1e9 * (p["nvlink small"] if inside else p["network"])
    products, moved, flop = compute(p, cloud, voxels)
    halos, shown, halo_bytes, exchanges = 0.0, 0.0, 0.0, 0
    peers = min(ranks - 1, cloud.neighbours)
    for relation, level, a, b, _, _, is_first in layers():
        if relation != "within" or ranks == 1:
            continue
        for which, cols in enumerate((a,) if is_first else (a, b)):
            sent = cloud.ghosts(level, voxels, ranks) * cols * BYTES  # as many are sent as come, on the mean
            halos += latency + more * (peers - 1) + sent / small
            shown += 0 if which else latency + more * (peers - 1) + sent / small  # gradients of weights hide the others
            halo_bytes += sent
            exchanges += 1
    norms = 0.0
    for *_, b, norm, _, _ in layers():
        if norm and ranks > 1:
            own = chunks * 2 * b * 4
            norms += 2 * (latency + more * (ranks - 2)) + (own + 2 * b * 4) * (ranks - 1) / small
    tree = chunks * 2 * 4 * WEIGHTS / (1e9 * p["copy"] * p["share"])  # a rank's own chunks
    weights = tree + (0 if ranks == 1 else 2 * (latency + more * (ranks - 2)) + 2 * 4 * WEIGHTS * (ranks - 1) / ranks / rate)
    total = products + moved + shown + norms + weights
    return dict(products=products, moved=moved, halos=halos, shown=shown, norms=norms, weights=weights, total=total, flop=flop, halo_bytes=halo_bytes, exchanges=exchanges)


def row_bytes(cloud):
    """Of values, gradients and sums that examples/ranks keeps, for each finest voxel."""
    widest = [0] * LEVELS
    total = [0.0] * LEVELS
    cs = [32, 32, 64, 128, 256, 256, 128, 96, 96]
    for level in range(LEVELS - 1):
        total[level] += 2 * (cs[8 - level] + cs[level])
        widest[level] = cs[8 - level] + cs[level]
    total[0] += INPUTS + OUTPUTS
    joined = {(0, 1)}
    for i, (relation, level, a, b, norm, _, _) in enumerate(layers()):
        into = (0, i) in joined or (relation == "up")
        ends = relation == "within" and level < LEVELS - 1 and is_way_down(i)
        total[level] += (0 if into or ends else 2 * b) + (b if norm else 0)
        widest[level] = max(widest[level], b)
    return BYTES * sum((t + 2 * w) * r for t, w, r in zip(total, widest, cloud.rows))


def is_way_down(i):
    """Whether layer i is the last of a level on the way down, which writes into the joined rows."""
    all_layers = layers()
    return i + 1 < len(all_layers) and all_layers[i + 1][0] == "down"


def memory(p, cloud, voxels, chunks=8):
    """GB of a GPU: rows, plans, parameters with gradients by chunk."""
    return 1e-9 * voxels * row_bytes(cloud), 1e-9 * voxels * p["plans"], 1e-9 * 4 * WEIGHTS * (3 + chunks + 3)


# ---- Measured -----------------------------------------------------------------------------------


def calibrate(p, cloud, path):
    """Parameters that lines of bench/scaling.py give; says what it took."""
    lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    runs = {}
    for line in lines:
        if line.get("backend") == "cuda":
            runs.setdefault((line["scaling"], line["ranks"]), {})[line["case"]] = line
    said = []
    one, two = runs.get(("weak", 1)), runs.get(("weak", 2))
    if one:
        model = step(p, cloud, one["step"]["voxels"], 1)
        case = one.get("step, captured", one["step"])
        factor = (1e-6 * case["median_us"] - model["weights"]) / (model["products"] + model["moved"])
        for name in ("rate 32", "rate 64", "rate 128", "rate 256", "copy"):
            p[name] /= factor
        said.append(f"what a rank computes takes {factor:.2f} times as long as modelled (a step of one GPU)")
    if two:
        coarse = two[f"halos of level {LEVELS - 1}"]
        p["latency"] = coarse["median_us"] / coarse["exchanges"]
        link = [x for c, x in two.items() if c.startswith("link")]
        if link:
            p["nvlink"] = 1e-3 * max(link[-1]["sent_bytes"]) / link[-1]["median_us"]
            middle = link[min(1, len(link) - 1)]
            p["nvlink small"] = 1e-3 * max(middle["sent_bytes"]) / middle["median_us"]
        said.append(f"an exchange takes {p['latency']:.0f} us, links carry {p['nvlink']:.0f} and {p['nvlink small']:.0f} GB/s")
        p["plans"] = max(two["made"]["plan_bytes"]) / (two["step"]["voxels"] / 2)
    return said


# ---- Tables -------------------------------------------------------------------------------------


def print_counts(clouds):
    print("\n| cloud | voxels | rows of levels, of the finest | pairs a row | ghosts of a part, times the root of its rows; two parts | neighbours |")
    print("|---|---|---|---|---|---|")
    for c in clouds:
        print(f"| {c.name} | {c.voxels:,} | {' '.join(f'{r:.3f}' for r in c.rows)} | {' '.join(f'{x:.1f}' for x in c.pairs)} "
              f"| {' '.join(f'{x:.1f}' for x in c.border)}; {' '.join(f'{x:.1f}' for x in c.border_of_two)} | {c.neighbours} |")  # fmt: skip


def print_levels(cloud):
    print("\n| level | convolutions within | exchanges of a step | bytes of a ghost in a step | GFLOP of a step, of 1 M finest voxels |")
    print("|---|---|---|---|---|")
    for level in range(LEVELS):
        mine = [x for x in layers() if x[1] == level]
        within = [x for x in mine if x[0] == "within"]
        exchanges = sum(1 if x[6] else 2 for x in within)
        sent = sum(BYTES * (x[2] + (0 if x[6] else x[3])) for x in within)
        work = sum(2e6 * cloud.rows[level] * pairs_of(cloud, r, level) * a * b * (2 if first else 3) for r, _, a, b, _, _, first in mine)
        print(f"| {level} | {len(within)} | {exchanges} | {sent:,} | {1e-9 * work:,.0f} |")


def print_steps(p, cloud):
    print("\n| voxels a GPU | GPUs | products | rows moved | halos: MB, ms, not hidden | norms' sums | weights' sums | step, ms | weak efficiency | with all halos and weights' sums hidden |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for voxels in (2e6, 8e6):
        one = step(p, cloud, voxels, 1)
        for ranks in (1, 2, 8, 64):
            s = step(p, cloud, voxels, ranks)
            hidden = s["products"] + s["moved"] + s["norms"] + one["weights"]
            ms = {k: 1e3 * s[k] for k in ("products", "moved", "halos", "shown", "norms", "weights", "total")}
            print(f"| {voxels:,.0f} | {ranks} | {ms['products']:.1f} | {ms['moved']:.1f} | {1e-6 * s['halo_bytes']:.1f}, {ms['halos']:.2f}, {ms['shown']:.2f} | {ms['norms']:.2f} "
                  f"| {ms['weights']:.2f} | {ms['total']:.1f} | {one['total'] / s['total']:.1%} | {one['total'] / hidden:.1%} |")  # fmt: skip
    strong = [step(p, cloud, 8e6 / r, r, 16 // r)["total"] for r in (1, 2)]
    print(f"\nStrong scaling of 8 M voxels, 16 chunks, two GPUs: {1e3 * strong[0]:.1f} and {1e3 * strong[1]:.1f} ms, {strong[0] / strong[1]:.2f} times as fast.")


def print_memory(p, cloud):
    rows, plans, gradients = (1e9 * x for x in memory(p, cloud, 1))
    most = (1e9 * p["device"] * 0.95 - gradients) / (rows + plans)
    print(f"\nA voxel takes {rows:,.0f} bytes of rows and {plans:,.0f} of plans, a GPU {1e-9 * gradients:.2f} GB of parameters and gradients: at most {1e-6 * most:.1f} M voxels a GPU.")
    need = 1e10 / most
    print(f"1e10 voxels in one step take {need:,.0f} GPUs, or 64 GPUs {need / 64:.1f} sets one after the other.")
    s = step(p, cloud, most, 64)
    sets = -(-need // 64)
    print(f"64 GPUs, {1e-6 * most:.1f} M voxels each: a set {1e3 * s['total']:.0f} ms, of which halos {1e3 * s['halos']:.1f} ({1e-6 * s['halo_bytes']:.0f} MB a GPU), "
          f"norms' sums {1e3 * s['norms']:.1f}, weights' sums {1e3 * s['weights']:.1f}; {sets:.0f} sets {sets * s['total']:.1f} s; making one, {1e-6 * most * (p['partition'] + p['halo']):.1f} s of each host core")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=__doc__.partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=Path, default=Path(__file__).parent / "results" / "halos.jsonl", help="lines of python/bench/halos.py (results/halos.jsonl)")
    parser.add_argument("--cloud", help="whose counts times are of; without it the one with most voxels")
    parser.add_argument("--measured", help="lines of bench/scaling.py on GPUs")
    args = parser.parse_args()
    lines = [json.loads(line) for line in args.counts.read_text(encoding="utf-8").splitlines() if line.strip()]
    names = list(dict.fromkeys(x["cloud"] for x in lines))
    clouds = [Cloud(lines, n) for n in names]
    cloud = next((c for c in clouds if c.name == args.cloud), max(clouds, key=lambda c: c.voxels))
    p = {name: value for name, (value, _, _) in PARAMETERS.items()}
    print("| parameter | value | of | from |\n|---|---|---|---|")
    for name, (value, unit, source) in PARAMETERS.items():
        print(f"| {name} | {value} | {unit} | {source} |")
    for line in calibrate(p, cloud, args.measured) if args.measured else ():
        print(f"\nMeasured: {line}.")
    print(f"\n{len(layers())} layers, {WEIGHTS / 1e6:.1f} M weights, {NORMS} norms; times of {cloud.name}.")
    print_counts(clouds)
    print_levels(cloud)
    print_steps(p, cloud)
    print_memory(p, cloud)
    return 0


if __name__ == "__main__":
    sys.exit(main())
