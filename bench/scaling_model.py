#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model of a training step of MinkUNet over many GPUs: the tables of docs/scaling.md.

    scaling_model.py [--measured ranks.jsonl | --single-layers] [--counts halos.jsonl] [--cloud NAME]

Counted: rows of levels, pairs, ghosts and neighbours of parts, from python/bench/halos.py. Products, bytes and
exchanges of a step follow from the layers that examples/ranks prints (ranks --layers 1). Times are modelled with the
parameters below, each with its source. What bench/scaling.py has measured on GPUs takes the place of parameters, and
is said; --single-layers leaves them as they are.
"""

import argparse
import json
import sys
from pathlib import Path

# value, unit, where it is from
PARAMETERS = {
    "rate 32": (130, "TFLOP/s of a convolution with 32 channels", "H200, conv_indoor, docs/performance.md: 42 us"),
    "rate 64": (251, "TFLOP/s, 64", "H100, fbc3d1f9, gyroid, docs/decoder.md"),
    "rate 128": (419, "TFLOP/s, 96 and 128", "the same"),
    "rate 256": (480, "TFLOP/s, 256 and more", "the same"),
    "backward": (2.56, "times the forward convolutions", "H100, docs/spconv-benchmark.md: 5,240 us and 2,045"),
    "copy": (2989, "GB/s that norms, sums and copies move", "H100, bench/results/maps_large.jsonl"),
    "share": (0.7, "of that rate that they reach", "assumed"),
    "sums": (2092, "GB/s at which a rank sums the gradients of its chunks", "0.7 of the rate of memory"),
    "fixed": (0, "ms of a step without rows: kernels too small for the device", "a step of one GPU, two sizes"),
    "latency": (20, "us of an exchange between two GPUs", "assumed"),
    "latency of more": (1.5, "us for each rank more in an exchange", "assumed"),
    "nvlink": (140, "GB/s from a GPU, large messages", "two H200: 283 GB/s both ways at 256 MB"),
    "nvlink small": (50, "GB/s from a GPU, messages up to 16 MB", "two H200: 113 GB/s both ways at 16 MB"),
    "network": (40, "GB/s from a GPU to another machine", "assumed: 400 Gb/s a GPU, four fifths of it"),
    "network latency": (30, "us of an exchange between machines", "assumed"),
    "plans": (900, "bytes of sets, maps and plans a voxel on a GPU", "assumed from what maps hold; CPU: counted by examples/ranks"),
    "device": (78, "GB of a GPU", "H100"),
    "partition": (0.43, "us of the host a voxel, partition", "examples/ranks, gyroid of 2 M, an EPYC that others used"),
    "halo": (0.72, "us of the host a voxel, levels and halos", "the same"),
}
RESULTS = Path(__file__).parent / "results"
BYTES, GPUS_OF_A_HOST = 2, 8  # of an element


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]


class Network:
    """Layers and values, as `ranks --layers 1` prints them."""

    def __init__(self, lines):
        self.layers = [x for x in lines if x["case"].startswith("layer")]
        self.values = [x for x in lines if x["case"].startswith("value")]
        self.levels = max(x["level"] for x in self.layers) + 1
        self.weights = sum(x["taps"] * x["in_cols"] * x["out_cols"] for x in self.layers)
        self.norms = [x["out_cols"] for x in self.layers if x["norm"]]

    def exchanged(self, level=None):
        """Columns of the ghosts that travel in a step: before a layer within a level, and of its gradient, which
        the input has none of. (columns, whether something runs beside it)."""
        for x in self.layers:
            if x["relation"] == "within" and level in (None, x["level"]):
                yield x["level"], x["in_cols"], False
                if not x["of_input"]:
                    yield x["level"], x["out_cols"], True


class Cloud:
    """Counts of a cloud: rows and pairs by level for each finest voxel, ghosts of a part."""

    def __init__(self, lines, name, levels, cell_log2=4):
        mine = [x for x in lines if x["cloud"] == name and x["cell_log2"] == cell_log2]
        one = {x["level"]: x for x in mine if x["parts"] == 1}
        self.name, self.voxels = name, one[0]["rows"]
        self.rows = [one[n]["rows"] / self.voxels for n in range(levels)]
        self.pairs = [one[n]["pairs"] / one[n]["rows"] for n in range(levels)]
        # Ghosts of a part are a border: so many times the root of its rows, the mean of all numbers of parts from 8 on.
        parts = [x for x in mine if x["parts"] >= 8]
        self.border = [mean(x["ghosts_all"] / x["parts"] / (x["rows"] / x["parts"]) ** 0.5 for x in parts if x["level"] == n) for n in range(levels)]
        two = [x for x in mine if x["parts"] == 2]
        self.border_of_two = [mean(x["ghosts_all"] / 2 / (x["rows"] / 2) ** 0.5 for x in two if x["level"] == n) for n in range(levels)]
        self.neighbours = max(x["from_ranks_most"] for x in mine)

    def ghosts(self, level, voxels, ranks):
        border = self.border_of_two if ranks == 2 else self.border
        return 0 if ranks == 1 else border[level] * (voxels * self.rows[level]) ** 0.5


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def rate_of(p, channels):
    return 1e12 * p["rate 32" if channels < 64 else "rate 64" if channels < 96 else "rate 128" if channels < 256 else "rate 256"]


def pairs_of(cloud, layer):
    """For each row of the layer's level. Between levels each fine row has one pair."""
    level = layer["level"]
    return {"within": cloud.pairs[level], "down": cloud.rows[level - 1] / cloud.rows[level], "up": 1, "pointwise": 1}[layer["relation"]]


def flop_of(cloud, layer, voxels):
    """Of the layer forward."""
    return 2 * voxels * cloud.rows[layer["level"]] * pairs_of(cloud, layer) * layer["in_cols"] * layer["out_cols"]


def compute(p, net, cloud, voxels):
    """Seconds of what a rank computes: convolutions, and what moves rows (norms, activations, sums of gradients)."""
    products = moved = 0.0
    for x in net.layers:
        rows = voxels * cloud.rows[x["level"]]
        products += flop_of(cloud, x, voxels) / rate_of(p, min(x["in_cols"], x["out_cols"])) * (1 + p["backward"] * (0.6 if x["of_input"] else 1))
        forward = (3 if x["norm"] else 0) + (5 if x["residual"] else 0)  # times the row is read or written
        backward = (5 if x["norm"] else 2) + (6 if x["residual"] else 0)
        moved += rows * BYTES * (x["out_cols"] * (forward + backward) + x["in_cols"] * 3)  # a gradient is written, then added to another
    return products, moved / (1e9 * p["copy"] * p["share"])


def step(p, net, cloud, voxels, ranks, chunks=8):
    """Parts of a step in seconds, bytes and exchanges, by name."""
    inside = ranks <= GPUS_OF_A_HOST
    latency = 1e-6 * (p["latency"] if inside else p["network latency"])
    more, rate, small = 1e-6 * p["latency of more"], 1e9 * p["nvlink" if inside else "network"], 1e9 * (p["nvlink small"] if inside else p["network"])
    products, moved = compute(p, net, cloud, voxels)
    halos, shown, halo_bytes = 0.0, 0.0, 0.0
    peers = min(ranks - 1, cloud.neighbours)
    for level, cols, is_hidden in net.exchanged() if ranks > 1 else ():
        sent = cloud.ghosts(level, voxels, ranks) * cols * BYTES  # as many are sent as come, on the mean
        halos += latency + more * (peers - 1) + sent / small
        shown += 0 if is_hidden else latency + more * (peers - 1) + sent / small  # gradients of weights hide the others
        halo_bytes += sent
    norms = 0.0
    for cols in net.norms if ranks > 1 else ():
        own = chunks * 2 * cols * 4
        norms += 2 * (latency + more * (ranks - 2)) + (own + 2 * cols * 4) * (ranks - 1) / small
    tree = sums_bytes(net, chunks) / (1e9 * p["sums"])
    weights = tree + (0 if ranks == 1 else 2 * (latency + more * (ranks - 2)) + 2 * 4 * net.weights * (ranks - 1) / ranks / rate)
    fixed = 1e-3 * p["fixed"]
    total = fixed + products + moved + shown + norms + weights
    return dict(fixed=fixed, products=products, moved=moved, halos=halos, shown=shown, norms=norms, weights=weights, total=total, halo_bytes=halo_bytes)


def row_bytes(net, cloud):
    """Of values, gradients, sums before norms and the widest rows twice, for each finest voxel."""
    widest, total = [8] * net.levels, [0] * net.levels
    for v in net.values:
        total[v["level"]] += v["cols"] * (1 + v["has_gradient"])
        widest[v["level"]] = max(widest[v["level"]], v["cols"])
    for x in net.layers:
        total[x["level"]] += x["out_cols"] * x["norm"]
    total[0] += net.layers[-1]["out_cols"]  # the target
    return BYTES * sum((t + 2 * w) * r for t, w, r in zip(total, widest, cloud.rows))


def sums_bytes(net, chunks):
    """Read and written where a rank sums gradients of weights over its own chunks."""
    return chunks * 2 * 4 * net.weights


def gradient_bytes(net, chunks=8):
    """Of parameters, their gradients and those of each chunk."""
    return 4 * net.weights * (3 + chunks)


# ---- Measured -----------------------------------------------------------------------------------


def captured_us(cases):
    return cases.get("step, captured", cases["step"])["median_us"]


def runs_of(lines):
    """(ranks, voxels) -> case -> line, of steps on GPUs."""
    runs = {}
    for line in lines:
        if line.get("backend") == "cuda":
            runs.setdefault((line["ranks"], line["voxels"]), {})[line["case"]] = line
    return runs


def chunks_of(ranks, cases):
    return cases["step"]["chunks"] // ranks


def calibrate(p, net, cloud, runs):
    """Parameters that measured steps give; says what it took. One GPU: its two largest sets. Two: the links, and an
    exchange's latency from the captured step of most voxels that is as large for each as one of one GPU."""
    said = []
    one = sorted((voxels, cases) for (ranks, voxels), cases in runs.items() if ranks == 1)[-2:]
    if one:
        p["sums"] = 1e-3 * sums_bytes(net, chunks_of(1, one[0][1])) / one[0][1]["sums of weights"]["median_us"]
    models = [step(p, net, cloud, voxels, 1, chunks_of(1, cases)) for voxels, cases in one]
    times = [1e-6 * captured_us(cases) - m["weights"] for (_, cases), m in zip(one, models)]
    work = [m["products"] + m["moved"] for m in models]
    if one:
        factor = (times[-1] - times[0]) / (work[-1] - work[0]) if len(one) > 1 else times[0] / work[0]
        p["fixed"] = 1e3 * (times[-1] - factor * work[-1])
        for name in ("rate 32", "rate 64", "rate 128", "rate 256", "copy"):
            p[name] /= factor
        said.append(f"what a rank computes takes {factor:.2f} times as long as single layers say, and {p['fixed']:.1f} ms beside it (steps of one GPU)")
    pairs = sorted((voxels, cases) for (ranks, voxels), cases in runs.items() if ranks == 2 and cases["step"].get("scaling") == "weak")
    if pairs:
        voxels, two = pairs[-1]
        link = [two[c] for c in sorted(two, key=lambda c: max(two[c].get("sent_bytes", [0]))) if c.startswith("link")]
        if link:
            p["nvlink"] = 1e-3 * max(link[-1]["sent_bytes"]) / link[-1]["median_us"]
            middle = link[min(1, len(link) - 1)]
            p["nvlink small"] = 1e-3 * max(middle["sent_bytes"]) / middle["median_us"]
        totals = [step({**p, "latency": us}, net, cloud, voxels / 2, 2, chunks_of(2, two))["total"] for us in (0, 1)]
        p["latency"] = max(1e-6 * captured_us(two) - totals[0], 0) / (totals[1] - totals[0])
        p["plans"] = max(two["made"]["plan_bytes"]) / (voxels / 2)
        for name, key in (("partition", "partition_ms"), ("halo", "halos_ms")):
            p[name] = 1e3 * max(two["made"][key]) / (voxels / 2)
        said.append(f"an exchange within a captured step takes {p['latency']:.0f} us, links carry {p['nvlink']:.0f} and {p['nvlink small']:.0f} GB/s")
        said.append(f"plans take {p['plans']:,.0f} bytes a voxel; the host {p['partition']:.2f} us for its partition and {p['halo']:.2f} for levels and halos")
    return said


# ---- Tables -------------------------------------------------------------------------------------


def print_counts(clouds):
    print("\n| cloud | voxels | rows of levels, of the finest | pairs a row | ghosts of a part, times the root of its rows; two parts | neighbours |")
    print("|---|---|---|---|---|---|")
    for c in clouds:
        print(f"| {c.name} | {c.voxels:,} | {' '.join(f'{r:.3f}' for r in c.rows)} | {' '.join(f'{x:.1f}' for x in c.pairs)} "
              f"| {' '.join(f'{x:.1f}' for x in c.border)}; {' '.join(f'{x:.1f}' for x in c.border_of_two)} | {c.neighbours} |")  # fmt: skip


def print_levels(net, cloud):
    print("\n| level | convolutions within | exchanges of a step | bytes of a ghost in a step | GFLOP of a step, of 1 M finest voxels |")
    print("|---|---|---|---|---|")
    for level in range(net.levels):
        mine = [x for x in net.layers if x["level"] == level]
        exchanged = [cols for _, cols, _ in net.exchanged(level)]
        work = sum(flop_of(cloud, x, 1e6) * (2 if x["of_input"] else 3) for x in mine)
        print(f"| {level} | {sum(x['relation'] == 'within' for x in mine)} | {len(exchanged)} | {BYTES * sum(exchanged):,} | {1e-9 * work:,.0f} |")


def print_measured(p, net, cloud, runs):
    print("\n| GPUs | voxels | step, captured, ms: measured | by the model |")
    print("|---|---|---|---|")
    for (ranks, voxels), cases in sorted(runs.items(), key=lambda run: (run[0][1] / run[0][0], run[0][0])):
        model = step(p, net, cloud, voxels / ranks, ranks, chunks_of(ranks, cases))
        print(f"| {ranks} | {voxels:,} | {1e-3 * captured_us(cases):.1f} | {1e3 * model['total']:.1f} |")


def print_steps(p, net, cloud):
    print("\n| voxels a GPU | GPUs | without rows | products | rows moved | halos: MB a GPU; alone; not hidden | sums of norms | sums of weights | step | weak efficiency | with all halos and sums of weights hidden |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for voxels in (2e6, 8e6):
        one = step(p, net, cloud, voxels, 1)
        for ranks in (1, 2, 8, 64):
            s = step(p, net, cloud, voxels, ranks)
            hidden = s["fixed"] + s["products"] + s["moved"] + s["norms"] + one["weights"]
            ms = {k: 1e3 * s[k] for k in ("fixed", "products", "moved", "halos", "shown", "norms", "weights", "total")}
            print(f"| {voxels:,.0f} | {ranks} | {ms['fixed']:.1f} | {ms['products']:.1f} | {ms['moved']:.1f} | {1e-6 * s['halo_bytes']:.1f}; {ms['halos']:.2f}; {ms['shown']:.2f} "
                  f"| {ms['norms']:.2f} | {ms['weights']:.2f} | {ms['total']:.1f} | {one['total'] / s['total']:.1%} | {one['total'] / hidden:.1%} |")  # fmt: skip
    strong = [step(p, net, cloud, 8e6 / r, r, 16 // r)["total"] for r in (1, 2)]
    print(f"\nStrong scaling of 8 M voxels, 16 chunks, two GPUs: {1e3 * strong[0]:.1f} and {1e3 * strong[1]:.1f} ms, {strong[0] / strong[1]:.2f} times as fast.")


def print_memory(p, net, cloud):
    rows, plans, gradients = row_bytes(net, cloud), p["plans"], gradient_bytes(net)
    most = (1e9 * p["device"] * 0.95 - gradients) / (rows + plans)
    print(f"\nA voxel takes {rows:,.0f} bytes of rows and {plans:,.0f} of plans, a GPU {1e-9 * gradients:.2f} GB of parameters and gradients: at most {1e-6 * most:.1f} M voxels a GPU.")
    need = 1e10 / most
    print(f"1e10 voxels in one step take {need:,.0f} GPUs, or 64 GPUs {need / 64:.1f} sets one after the other.")
    s = step(p, net, cloud, most, 64)
    sets = -(-need // 64)
    print(f"64 GPUs, {1e-6 * most:.1f} M voxels each: a set {1e3 * s['total']:.0f} ms, of which halos {1e3 * s['halos']:.1f} ({1e-6 * s['halo_bytes']:.0f} MB a GPU), "
          f"norms' sums {1e3 * s['norms']:.1f}, weights' sums {1e3 * s['weights']:.1f}; {sets:.0f} sets {sets * s['total']:.1f} s; making one, {1e-6 * most * (p['partition'] + p['halo']):.1f} s of each host")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=__doc__.partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=Path, default=RESULTS / "halos.jsonl", help="lines of python/bench/halos.py (results/halos.jsonl)")
    parser.add_argument("--layers", type=Path, default=RESULTS / "ranks_layers.jsonl", help="what ranks --layers 1 prints (results/ranks_layers.jsonl)")
    parser.add_argument("--cloud", help="whose counts times are of; without it the one with most voxels")
    parser.add_argument("--measured", type=Path, default=RESULTS / "ranks_two_gpus.jsonl", help="lines of bench/scaling.py on GPUs (results/ranks_two_gpus.jsonl)")
    parser.add_argument("--single-layers", action="store_true", help="times by single layers and assumed latencies; nothing measured")
    args = parser.parse_args()
    net, lines = Network(lines_of(args.layers)), lines_of(args.counts)
    clouds = [Cloud(lines, n, net.levels) for n in dict.fromkeys(x["cloud"] for x in lines)]
    if args.cloud is not None and args.cloud not in [c.name for c in clouds]:
        parser.error(f"--cloud is {args.cloud!r}, expected one of {', '.join(repr(c.name) for c in clouds)}")
    cloud = next((c for c in clouds if c.name == args.cloud), max(clouds, key=lambda c: c.voxels))
    p = {name: value for name, (value, _, _) in PARAMETERS.items()}
    runs = {} if args.single_layers else runs_of(lines_of(args.measured))
    print("| parameter | value | of | from |\n|---|---|---|---|")
    for name, (value, unit, source) in PARAMETERS.items():
        print(f"| {name} | {value} | {unit} | {source} |")
    for line in calibrate(p, net, cloud, runs) if runs else ():
        print(f"\nMeasured: {line}.")
    print(f"\n{len(net.layers)} layers, {net.weights / 1e6:.1f} M weights, {len(net.norms)} norms; times of {cloud.name}.")
    print_counts(clouds)
    print_levels(net, cloud)
    if runs:
        print_measured(p, net, cloud, runs)
    print_steps(p, net, cloud)
    print_memory(p, net, cloud)
    return 0


if __name__ == "__main__":
    sys.exit(main())
