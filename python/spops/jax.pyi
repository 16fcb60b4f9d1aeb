# SPDX-License-Identifier: Apache-2.0
# Written by python -m spops._stubs from the list of operators.
from collections.abc import Sequence
from typing import NamedTuple

from jax import Array
from jax.typing import DTypeLike

from ._jax_plans import Plan as Plan

class Level(NamedTuple):
    coords: Plan
    num_rows: Array
    within: Plan
    down: Plan | None
    up: Plan | None

def levels(
    coords: Plan, num: int, size: int = 3, stride: int = 2, rows: Sequence[int] | None = None, pairs_per_row: int | None = None
) -> list[Level]: ...

def segments(
    keys: Array,
    num_segments: int,
    idx: Array | None = None,
    weight_idx: Array | None = None,
    num_terms: Array | None = None,
    num_rows: int = 0,
    num_weights: int = 0,
    order: str | int = 'unsorted',
    max_cols: int = 0,
    gradients: str | int = 'none',
    **capacities: int,
) -> Plan: ...  # Plan of segments: term t belongs to segment keys[t], and takes row idx[t] and weight weight_idx[t].

def segments_offsets(
    offsets: Array,
    idx: Array | None = None,
    weight_idx: Array | None = None,
    num_rows: int = 0,
    num_weights: int = 0,
    max_cols: int = 0,
    gradients: str | int = 'none',
    **capacities: int,
) -> Plan: ...  # Plan of segments: segment s has the terms offsets[s] to offsets[s + 1] - 1.

def segreduce(
    x: Array,
    segments: Plan,
    w: Array | None = None,
    reduce: str | int = 'sum',
    arg: bool = False,
) -> Array | tuple[Array, ...]: ...  # out[s] = reduce over the terms t of segment s of w[t] x[idx[t]].

def segreduce_backward(
    x: Array,
    grad_out: Array,
    segments: Plan,
    w: Array | None = None,
    reduce: str | int = 'sum',
    grad_x: bool = True,
    grad_w: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of segreduce.

def gather(
    x: Array,
    rows: Plan,
    w: Array | None = None,
) -> Array: ...  # out[t] = w[t] x[keys[t]], where keys are the segments of the plan's terms.

def gather_backward(
    x: Array,
    grad_out: Array,
    rows: Plan,
    w: Array | None = None,
    grad_x: bool = True,
    grad_w: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of gather.

def rank(
    segments: Plan,
) -> Array: ...  # ranks[t] = how many terms before t its segment has; -1 for a term that the plan left out.

def segment_softmax(
    x: Array,
    segments: Plan,
) -> Array: ...  # out[t] = exp(x[t]) / sum over the terms u of t's segment of exp(x[u]), in every column.

def segment_softmax_backward(
    out: Array,
    grad_out: Array,
    segments: Plan,
) -> Array: ...  # Gradient of segment_softmax.

def segment_sort(
    x: Array,
    segments: Plan,
    descending: bool = False,
) -> tuple[Array, Array]: ...  # Values of each segment in order, stably, in every column; places: the terms that have them.

def segment_sort_backward(
    places: Array,
    grad_values: Array,
    segments: Plan,
) -> Array: ...  # Gradient of segment_sort.

def segment_topk(
    x: Array,
    segments: Plan,
    k: int = 1,
    smallest: bool = False,
) -> tuple[Array, Array]: ...  # The k largest values of each segment, or the smallest, in every column; places: the terms that have them, or -1.

def segment_topk_backward(
    places: Array,
    grad_values: Array,
    segments: Plan,
    k: int = 1,
) -> Array: ...  # Gradient of segment_topk.

def sddmm(
    q: Array,
    k: Array,
    segments: Plan,
    heads: int = 1,
    scale: float = 1.0,
) -> Array: ...  # out[t, h] = scale times the product of q[s(t)] and k[idx[t]] in the columns of head h.

def sddmm_backward(
    q: Array,
    k: Array,
    grad_out: Array,
    segments: Plan,
    heads: int = 1,
    scale: float = 1.0,
    grad_q: bool = True,
    grad_k: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of sddmm.

def spmm(
    w: Array,
    x: Array,
    segments: Plan,
    heads: int = 1,
) -> Array: ...  # out[s] = sum over the terms t of segment s of w[t, h] x[idx[t]], in the columns of every head h.

def spmm_backward(
    w: Array,
    x: Array,
    grad_out: Array,
    segments: Plan,
    heads: int = 1,
    grad_w: bool = True,
    grad_x: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of spmm.

def argsort(
    keys: Array,
    num_keys: Array | None = None,
    descending: bool = False,
    sorted: bool = False,
) -> Array | tuple[Array, ...]: ...  # The order that sorts keys, stably, and the sorted keys; after the keys that count -1 and 0.

def unique(
    keys: Array,
    num_keys: Array | None = None,
    inverse: bool = False,
    counts: bool = False,
) -> Array | tuple[Array, ...]: ...  # The different keys, ascending, which of them each key is, and how many keys are each.

def triplets(
    matrices: Array,
    num_out: int,
    num_in: int,
    num_matrices: int,
    out_rows: Array | None = None,
    in_rows: Array | None = None,
    num_triplets: Array | None = None,
    order: str | int = 'unsorted',
    backward: bool = False,
    max_matrix_elements: int = 0,
    **capacities: int,
) -> Plan: ...  # Plan of triplets: output row out_rows[t] takes input row in_rows[t] times matrix matrices[t].

def triplets_offsets(
    offsets: Array,
    backward: bool = False,
    max_matrix_elements: int = 0,
    **capacities: int,
) -> Plan: ...  # Plan of rows times the matrix of their group: group k has the rows offsets[k] to offsets[k + 1] - 1.

def mvmr(
    x: Array,
    w: Array,
    triplets: Plan,
    s: Array | None = None,
    num_rows: Array | None = None,
    groups: int = 1,
    diagonal: bool = False,
    transposed: bool = False,
    reversed: bool = False,
    accumulate: bool = False,
    math: str | int = 'exact',
    dtype: DTypeLike | None = None,
) -> Array: ...  # out[i] = sum over triplets (i, j, k) of s[t] x[j] w[k].

def mvmr_backward(
    x: Array,
    w: Array,
    grad_out: Array,
    triplets: Plan,
    s: Array | None = None,
    num_rows: Array | None = None,
    groups: int = 1,
    diagonal: bool = False,
    transposed: bool = False,
    reversed: bool = False,
    accumulate: bool = False,
    math: str | int = 'exact',
    grad_x: bool = True,
    grad_w: bool = True,
    grad_s: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of mvmr.

def vvor(
    x: Array,
    g: Array,
    triplets: Plan,
    s: Array | None = None,
    num_rows: Array | None = None,
    groups: int = 1,
    diagonal: bool = False,
    transposed: bool = False,
    reversed: bool = False,
    accumulate: bool = False,
    math: str | int = 'exact',
    dtype: DTypeLike | None = None,
) -> Array: ...  # out[k] = sum over triplets (i, j, k) of s[t] x[j] (x) g[i]: the gradient of matrices.

def sparseconv_plan(
    map: Plan,
    backward: bool = False,
    dataflow: str | int = 'auto',
    max_in_channels: int = 0,
    max_out_channels: int = 0,
    grouping: str | int = 'auto',
    epsilon: float = 0.0,
    batch_rows: int = 0,
    quantized: bool = False,
    crop_independent: bool = False,
    **capacities: int,
) -> Plan: ...  # Plan of the sparse convolutions of a kernel map.

def sparseconv(
    x: Array,
    w: Array,
    conv: Plan,
    bias: Array | None = None,
    scale: Array | None = None,
    shift: Array | None = None,
    residual: Array | None = None,
    x_scales: Array | None = None,
    groups: int = 1,
    activation: str | int = 'none',
    math: str | int = 'exact',
    x_scales_by_channel: bool = False,
    activation_slope: float = 0.0,
    dtype: DTypeLike | None = None,
) -> Array: ...  # out[i] = activation((sum over pairs (i, j, k) of x[j] w[k] + bias) scale + shift + residual[i]).

def sparseconv_quantized(
    x: Array,
    w: Array,
    conv: Plan,
    x_scale: Array | None = None,
    w_scales: Array | None = None,
    bias: Array | None = None,
    scale: Array | None = None,
    shift: Array | None = None,
    residual: Array | None = None,
    residual_scale: Array | None = None,
    out_scale: Array | None = None,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    fast_sums: bool = False,
    dtype: DTypeLike | None = None,
) -> Array: ...  # sparseconv of codes: (sum x_scale w_scales + bias) scale + shift + residual, and activation; over out_scale.

def sparseconv_backward(
    x: Array,
    w: Array,
    grad_sum: Array,
    conv: Plan,
    groups: int = 1,
    math: str | int = 'exact',
    grad_x: bool = True,
    grad_w: bool = True,
    grad_bias: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of the sum of sparseconv, and of its bias.

def pointconv_plan(
    neighbors: Plan,
    backward: bool = False,
    dataflow: str | int = 'auto',
    max_in_channels: int = 0,
    max_out_channels: int = 0,
    sums: str | int = 'auto',
    quantized: bool = False,
    crop_independent: bool = False,
    **capacities: int,
) -> Plan: ...  # Plan of the convolutions over the neighbours of points.

def pointconv(
    x: Array,
    w: Array,
    conv: Plan,
    bias: Array | None = None,
    scale: Array | None = None,
    shift: Array | None = None,
    residual: Array | None = None,
    x_scales: Array | None = None,
    groups: int = 1,
    activation: str | int = 'none',
    math: str | int = 'exact',
    x_scales_by_channel: bool = False,
    activation_slope: float = 0.0,
    dtype: DTypeLike | None = None,
) -> Array: ...  # out[i] = activation((sum over neighbours (i, j, k) of x[j] w[k] + bias) scale + shift + residual[i]).

def pointconv_backward(
    x: Array,
    w: Array,
    grad_sum: Array,
    conv: Plan,
    groups: int = 1,
    math: str | int = 'exact',
    grad_x: bool = True,
    grad_w: bool = True,
    grad_bias: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of the sum of pointconv, and of its bias.

def pool_plan(
    map: Plan,
    gradients: str | int = 'none',
    max_cols: int = 0,
    **capacities: int,
) -> Plan: ...  # Plan of pooling over the windows of a kernel map.

def pool_global_plan(
    coords: Plan,
    num_batches: int,
    gradients: str | int = 'none',
    max_cols: int = 0,
    **capacities: int,
) -> Plan: ...  # Plan of global pooling: row b pools the rows of batch b.

def pool_buckets_plan(
    buckets: Plan,
    sub_rows: int,
    gradients: str | int = 'none',
    max_cols: int = 0,
    **capacities: int,
) -> Plan: ...  # Plan of pooling neighbouring rows of a bucket.

def pool_segments(
    pool: Plan,
    **capacities: int,
) -> Plan: ...  # The segments of a pooling plan: output rows, with the rows that they pool.

def pool(
    x: Array,
    pool: Plan,
    reduce: str | int = 'max',
) -> Array: ...  # out[i] = reduce over the rows j that are pooled into i of x[j].

def pool_backward(
    x: Array,
    grad_out: Array,
    pool: Plan,
    reduce: str | int = 'max',
) -> Array: ...  # Gradient of pool.

def bevpool(
    feat: Array,
    depth: Array,
    plan: Plan,
    feat_scales: Array | None = None,
    feat_scale: Array | None = None,
    depth_scale: Array | None = None,
    out_scale: Array | None = None,
    layout: str | int = 'channels_last',
    accumulate: str | int = 'f32',
    dtype: DTypeLike | None = None,
) -> Array: ...  # out[cell] = sum over points p of a cell of depth[p] feat[pixel(p)], times feat_scale depth_scale / out_scale.

def bevpool_backward(
    feat: Array,
    depth: Array,
    grad_out: Array,
    plan: Plan,
    layout: str | int = 'channels_last',
    grad_depth: bool = True,
    grad_feat: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of bevpool.

def attention(
    q: Array,
    k: Array,
    v: Array,
    patches: Plan,
    positions: Array | None = None,
    key_positions: Array | None = None,
    bias_coords: Array | None = None,
    bias_key_coords: Array | None = None,
    bias_table: Array | None = None,
    q_weight: Array | None = None,
    k_weight: Array | None = None,
    heads: int = 1,
    scale: float = 0.0,
    math: str | int = 'exact',
    rotary_base: float = 0.0,
    rotary_axis_dim: int = 0,
    kv_heads: int = 0,
    epsilon: float = 0.0,
    lse: bool = False,
) -> Array | tuple[Array, ...]: ...  # o[i] = sum over the keys j of i's patch of softmax(scale q[i] k[j] + bias) v[j], for every head.

def attention_backward(
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    grad_o: Array,
    patches: Plan,
    positions: Array | None = None,
    key_positions: Array | None = None,
    bias_coords: Array | None = None,
    bias_key_coords: Array | None = None,
    bias_table: Array | None = None,
    q_weight: Array | None = None,
    k_weight: Array | None = None,
    heads: int = 1,
    scale: float = 0.0,
    math: str | int = 'exact',
    rotary_base: float = 0.0,
    rotary_axis_dim: int = 0,
    kv_heads: int = 0,
    epsilon: float = 0.0,
    grad_q: bool = True,
    grad_k: bool = True,
    grad_v: bool = True,
    grad_table: bool = True,
    grad_q_weight: bool = True,
    grad_k_weight: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of attention.

def linear(
    x: Array,
    w: Array,
    bias: Array | None = None,
    scale: Array | None = None,
    shift: Array | None = None,
    residual: Array | None = None,
    num_rows: Array | None = None,
    w_transposed: bool = False,
    activation: str | int = 'none',
    math: str | int = 'exact',
    activation_slope: float = 0.0,
    dtype: DTypeLike | None = None,
) -> Array: ...  # out[i] = activation((x[i] w + bias) scale + shift + residual[i]).

def linear_quantized(
    x: Array,
    w: Array,
    x_scale: Array | None = None,
    w_scales: Array | None = None,
    bias: Array | None = None,
    scale: Array | None = None,
    shift: Array | None = None,
    residual: Array | None = None,
    residual_scale: Array | None = None,
    out_scale: Array | None = None,
    num_rows: Array | None = None,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    fast_sums: bool = False,
    dtype: DTypeLike | None = None,
) -> Array: ...  # linear of codes: (sum x_scale w_scales + bias) scale + shift + residual, and activation; over out_scale.

def linear_backward(
    x: Array,
    w: Array,
    grad_sum: Array,
    num_rows: Array | None = None,
    w_transposed: bool = False,
    math: str | int = 'exact',
    grad_x: bool = True,
    grad_w: bool = True,
    grad_bias: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of the sum of linear, and of its bias.

def convert(
    x: Array,
    dtype: DTypeLike | None = None,
) -> Array: ...  # out = x, rounded to the dtype of out.

def convert_indices(
    x: Array,
    dtype: DTypeLike | None = None,
) -> Array: ...  # out = x; -1 where i32 cannot hold it.

def activation(
    x: Array,
    num_rows: Array | None = None,
    kind: str | int = 'relu',
    activation_slope: float = 0.0,
) -> Array: ...  # out[r, c] = activation(x[r, c]).

def activation_backward(
    x: Array,
    grad_out: Array,
    num_rows: Array | None = None,
    kind: str | int = 'relu',
    activation_slope: float = 0.0,
) -> Array: ...  # Gradient of activation: grad_x[r, c] = grad_out[r, c] activation'(x[r, c]).

def add(
    x: Array,
    y: Array,
    num_rows: Array | None = None,
    scale: float = 1.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
) -> Array: ...  # out[r, c] = activation(x[r, c]) + scale y[r, c].

def add_backward(
    x: Array,
    grad_out: Array,
    num_rows: Array | None = None,
    scale: float = 1.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    grad_x: bool = True,
    grad_y: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of add.

def batchnorm_statistics(
    x: Array,
    num_rows: Array | None = None,
    momentum: float = 0.0,
    running_mean: Array | None = None,
    running_var: Array | None = None,
) -> Array | tuple[Array, ...]: ...  # Mean and variance of every column, and the running ones of training.

def batchnorm(
    x: Array,
    mean: Array,
    var: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    num_rows: Array | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    fixed_statistics: bool = False,
) -> Array: ...  # out[r, c] = activation((x[r, c] - mean[c]) gamma[c] / sqrt(var[c] + epsilon) + beta[c]).

def batchnorm_backward(
    x: Array,
    mean: Array,
    var: Array,
    grad_out: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    num_rows: Array | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    fixed_statistics: bool = False,
    activation_slope: float = 0.0,
    grad_gamma: bool = True,
    grad_beta: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of batchnorm after batchnorm_statistics; of constant statistics with fixed_statistics.

def batchnorm_merge(
    statistics: Array,
    chunk_rows: Array,
    momentum: float = 0.0,
    running_mean: Array | None = None,
    running_var: Array | None = None,
) -> Array | tuple[Array, ...]: ...  # Mean and variance of every column of rows in several places, from those of each: rows of mean, then var.

def batchnorm_sums(
    x: Array,
    mean: Array,
    var: Array,
    grad_out: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    num_rows: Array | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
) -> tuple[Array, Array]: ...  # The sums of batchnorm_backward over the rows of one place.

def batchnorm_gradient(
    x: Array,
    mean: Array,
    var: Array,
    grad_gamma: Array,
    grad_beta: Array,
    grad_out: Array,
    total_rows: int,
    gamma: Array | None = None,
    beta: Array | None = None,
    num_rows: Array | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
) -> Array: ...  # The gradient of x of batchnorm_backward, from the sums over the total_rows rows of all places.

def layernorm(
    x: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    num_rows: Array | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
) -> Array: ...  # out[r, c] = activation((x[r, c] - mean[r]) gamma[c] / sqrt(var[r] + epsilon) + beta[c]).

def layernorm_backward(
    x: Array,
    grad_out: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    num_rows: Array | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    grad_gamma: bool = True,
    grad_beta: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of layernorm.

def rmsnorm(
    x: Array,
    gamma: Array | None = None,
    num_rows: Array | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
) -> Array: ...  # out[r, c] = activation(x[r, c] gamma[c] / sqrt(mean over c of x[r, c]^2 + epsilon)).

def rmsnorm_backward(
    x: Array,
    grad_out: Array,
    gamma: Array | None = None,
    num_rows: Array | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    grad_gamma: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of rmsnorm.

def addnorm(
    x: Array,
    y: Array,
    y_gamma: Array | None = None,
    y_beta: Array | None = None,
    gamma: Array | None = None,
    beta: Array | None = None,
    num_rows: Array | None = None,
    norm_y: bool = False,
    rms: bool = False,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
) -> tuple[Array, Array]: ...  # total = x + y, or x + the norm of y; out = activation(the norm of total): layer norm, or RMS norm with rms.

def addnorm_backward(
    total: Array,
    y: Array,
    grad_out: Array,
    y_gamma: Array | None = None,
    y_beta: Array | None = None,
    gamma: Array | None = None,
    beta: Array | None = None,
    grad_total: Array | None = None,
    num_rows: Array | None = None,
    norm_y: bool = False,
    rms: bool = False,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    grad_y_gamma: bool = True,
    grad_y_beta: bool = True,
    grad_gamma: bool = True,
    grad_beta: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of addnorm.

def groupnorm_statistics(
    x: Array,
    samples: Plan,
    groups: int = 1,
) -> tuple[Array, Array]: ...  # Mean and variance of every sample, a segment of rows, and group of columns; groups = C: instance norm.

def groupnorm(
    x: Array,
    mean: Array,
    var: Array,
    samples: Plan,
    gamma: Array | None = None,
    beta: Array | None = None,
    groups: int = 1,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    fixed_statistics: bool = False,
) -> Array: ...  # out[r, c] = activation((x[r, c] - mean[s, k]) gamma[c] / sqrt(var[s, k] + epsilon) + beta[c]) of row r of sample s.

def groupnorm_backward(
    x: Array,
    mean: Array,
    var: Array,
    grad_out: Array,
    samples: Plan,
    gamma: Array | None = None,
    beta: Array | None = None,
    groups: int = 1,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    fixed_statistics: bool = False,
    activation_slope: float = 0.0,
    grad_gamma: bool = True,
    grad_beta: bool = True,
) -> Array | tuple[Array, ...]: ...  # Gradients of groupnorm after groupnorm_statistics; of constant statistics with fixed_statistics.

def quantize_scale(
    x: Array,
    dtype: str | int = 'f8e4m3',
) -> Array: ...  # The scale that makes the largest magnitude of x the largest value of dtype.

def quantize(
    x: Array,
    scale: Array | None = None,
    block_scales: bool = False,
    dtype: DTypeLike | None = None,
) -> Array | tuple[Array, ...]: ...  # out = x / scale, rounded to 8 or 4 bits.

def quantize_weights(
    w: Array,
    taps: int = 1,
    w_transposed: bool = False,
    dtype: DTypeLike | None = None,
) -> tuple[Array, Array]: ...  # Weights of a layer as codes, an output channel a row, with a scale for each.

def dequantize(
    q: Array,
    scale: Array | None = None,
    block_scales: Array | None = None,
    dtype: DTypeLike | None = None,
) -> Array: ...  # out = scale q, times the scales of blocks.

def coords(
    rows: Array,
    num_rows: Array | None = None,
    order: str | int = 'given',
    search: str | int = 'auto',
    duplicates: str | int = 'refuse',
    lower: int | Sequence[int] | None = None,
    upper: int | Sequence[int] | None = None,
    max_grid_bytes: int = 0,
    **capacities: int,
) -> Plan: ...  # A set of coordinates: batch, and 1 to 4 axes.

def coords_down(
    in_: Plan,
    size: int | Sequence[int] | None = None,
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] | None = None,
    dilation: int | Sequence[int] | None = None,
    order: str | int = 'given',
    search: str | int = 'auto',
    lower: int | Sequence[int] | None = None,
    upper: int | Sequence[int] | None = None,
    max_grid_bytes: int = 0,
    **capacities: int,
) -> Plan: ...  # Outputs of a convolution over a set.

def coords_up(
    in_: Plan,
    size: int | Sequence[int] | None = None,
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] | None = None,
    dilation: int | Sequence[int] | None = None,
    order: str | int = 'given',
    search: str | int = 'auto',
    lower: int | Sequence[int] | None = None,
    upper: int | Sequence[int] | None = None,
    max_grid_bytes: int = 0,
    **capacities: int,
) -> Plan: ...  # Outputs of a generative transposed convolution over a set.

def coords_union(
    a: Plan,
    b: Plan,
    order: str | int = 'given',
    search: str | int = 'auto',
    lower: int | Sequence[int] | None = None,
    upper: int | Sequence[int] | None = None,
    max_grid_bytes: int = 0,
    **capacities: int,
) -> Plan: ...  # The rows of a, then those of b that are not in a.

def coords_pruned(
    keep: Array,
    in_: Plan,
    order: str | int = 'given',
    search: str | int = 'auto',
    lower: int | Sequence[int] | None = None,
    upper: int | Sequence[int] | None = None,
    max_grid_bytes: int = 0,
    **capacities: int,
) -> Plan: ...  # The rows of a set whose keep is not 0.

def coords_children(
    keep: Array,
    in_: Plan,
    factor: int = 2,
    order: str | int = 'given',
    search: str | int = 'auto',
    lower: int | Sequence[int] | None = None,
    upper: int | Sequence[int] | None = None,
    max_grid_bytes: int = 0,
    **capacities: int,
) -> Plan: ...  # The factor^dims children of each row whose keep is not 0.

def coords_grown(
    marks: Array,
    in_: Plan,
    size: int | Sequence[int] | None = None,
    dilation: int | Sequence[int] | None = None,
    order: str | int = 'given',
    search: str | int = 'auto',
    lower: int | Sequence[int] | None = None,
    upper: int | Sequence[int] | None = None,
    max_grid_bytes: int = 0,
    **capacities: int,
) -> Plan: ...  # The rows of a set, then the cells of windows around rows whose mark is not 0.

def coords_rows(
    coords: Plan,
    items: bool = False,
) -> Array | tuple[Array, ...]: ...  # Rows of a set, how many are in use, and which of the rows that it was made from each is, the first of equal ones.

def dense(
    x: Array,
    coords: Plan,
    layout: str | int = 'channels_first',
    num_batches: int = 1,
    size0: int = 1,
    size1: int = 1,
    size2: int = 1,
    size3: int = 1,
    origin: int | Sequence[int] | None = None,
    fill: float = 0.0,
) -> Array: ...  # Rows of a set as a dense grid; fill where there is no row.

def dense_backward(
    grad_out: Array,
    coords: Plan,
    layout: str | int = 'channels_first',
    num_batches: int = 1,
    size0: int = 1,
    size1: int = 1,
    size2: int = 1,
    size3: int = 1,
    origin: int | Sequence[int] | None = None,
) -> Array: ...  # Gradient of dense.

def dense_rows(
    dense: Array,
    coords: Plan,
    layout: str | int = 'channels_first',
    num_batches: int = 1,
    size0: int = 1,
    size1: int = 1,
    size2: int = 1,
    size3: int = 1,
    origin: int | Sequence[int] | None = None,
) -> Array: ...  # Cells of a dense grid as rows of a set; 0 where a row is outside the grid.

def dense_rows_backward(
    grad_out: Array,
    coords: Plan,
    layout: str | int = 'channels_first',
    num_batches: int = 1,
    size0: int = 1,
    size1: int = 1,
    size2: int = 1,
    size3: int = 1,
    origin: int | Sequence[int] | None = None,
) -> Array: ...  # Gradient of dense_rows.

def channel_to_space(
    x: Array,
    coarse: Plan,
    fine: Plan,
    factor: int = 2,
) -> Array: ...  # Channels of coarse rows as rows of their factor^dims children; 0 for a fine row without a coarse one.

def channel_to_space_backward(
    grad_out: Array,
    coarse: Plan,
    fine: Plan,
    factor: int = 2,
) -> Array: ...  # Gradient of channel_to_space.

def space_to_channel(
    x: Array,
    coarse: Plan,
    fine: Plan,
    factor: int = 2,
) -> Array: ...  # Rows of children as channels of their coarse row; 0 for a child that is not there.

def space_to_channel_backward(
    grad_out: Array,
    coarse: Plan,
    fine: Plan,
    factor: int = 2,
) -> Array: ...  # Gradient of space_to_channel.

def voxels(
    points: Array,
    batch: Array | None = None,
    num_points: Array | None = None,
    size_m: float | Sequence[float] | None = None,
    origin_m: float | Sequence[float] | None = None,
    points_of: str | int = 'all',
    seed: int = 0,
    dims: int = 0,
    order: str | int = 'given',
    search: str | int = 'auto',
    lower_m: float | Sequence[float] | None = None,
    upper_m: float | Sequence[float] | None = None,
    gradients: str | int = 'none',
    max_cols: int = 0,
    most_points: int = 0,
    **capacities: int,
) -> Plan: ...  # The voxels that points lie in; with lower_m and upper_m, points outside are left out.

def voxels_coords(
    voxels: Plan,
    **capacities: int,
) -> Plan: ...  # The voxels as a set of coordinates.

def voxels_padded(
    x: Array,
    voxels: Plan,
    num_points: bool = False,
) -> Array | tuple[Array, ...]: ...  # Rows of the points that voxels hold, most_points places a voxel, zero where there is no point.

def voxels_padded_backward(
    grad_out: Array,
    voxels: Plan,
) -> Array: ...  # Gradient of voxels_padded.

def voxels_segments(
    voxels: Plan,
    **capacities: int,
) -> Plan: ...  # Segments are voxels, rows are points.

def devoxels(
    points: Array,
    coords: Plan,
    batch: Array | None = None,
    num_points: Array | None = None,
    size_m: float | Sequence[float] | None = None,
    origin_m: float | Sequence[float] | None = None,
    interpolation: str | int = 'nearest',
    missing: str | int = 'zero',
    gradients: str | int = 'none',
    max_cols: int = 0,
    **capacities: int,
) -> Plan: ...  # The relation that brings features of voxels to points.

def devoxels_segments(
    devoxels: Plan,
    **capacities: int,
) -> Plan: ...  # Segments are points, rows are voxels.

def devoxels_weights(
    devoxels: Plan,
) -> Array: ...  # The weights of a relation from voxels to points.

def kernel_map(
    in_: Plan,
    out: Plan | None = None,
    kind: str | int = 'submanifold',
    size: int | Sequence[int] | None = None,
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] | None = None,
    dilation: int | Sequence[int] | None = None,
    contents: int | str = 0,
    tile_rows: int = 0,
    no_symmetry: bool = False,
    **capacities: int,
) -> Plan: ...  # Which input row meets which output row at which tap of a kernel.

def kernel_map_inverse(
    of: Plan,
    contents: int | str = 0,
    tile_rows: int = 0,
    **capacities: int,
) -> Plan: ...  # A map with inputs and outputs exchanged.

def pyramid(
    finest: Plan,
    num_levels: int = 0,
    contents: int | str = 0,
    order: str | int = 'given',
    search: str | int = 'auto',
    **capacities: int,
) -> Plan: ...  # The sets and kernel maps of all levels of a U-Net.

def pyramid_coords(
    pyramid: Plan,
    level: int = 0,
    **capacities: int,
) -> Plan: ...  # A level's coordinates.

def pyramid_map(
    pyramid: Plan,
    relation: str | int = 'within',
    level: int = 0,
    **capacities: int,
) -> Plan: ...  # A map within a level, or to the next, or back.

def bev_plan(
    num_batches: int,
    num_cameras: int,
    num_depths: int,
    feature_height: int,
    feature_width: int,
    num_cells_x: int,
    num_cells_y: int,
    num_cells_z: int,
    input_height: int,
    input_width: int,
    transforms: Array | None = None,
    depth_start_m: float = 1.0,
    depth_step_m: float = 1.0,
    depths_m: float | Sequence[float] | None = None,
    grid_lower_m: float | Sequence[float] | None = None,
    cell_size_m: float | Sequence[float] | None = None,
    intrinsics: float | Sequence[float] | None = None,
    camera_to_ego: float | Sequence[float] | None = None,
    image_to_input: float | Sequence[float] | None = None,
    backward: bool = False,
    kernel: str | int = 'auto',
    max_cols: int = 0,
    **capacities: int,
) -> Plan: ...  # Plan of BEV pooling from up to 64 cameras, with 9, 16 and 6 numbers each; left out: of the identity.

def bev_plan_ranks(
    ranks_depth: Array,
    ranks_feat: Array,
    ranks_bev: Array,
    interval_starts: Array,
    interval_lengths: Array,
    num_batches: int,
    num_cameras: int,
    num_depths: int,
    feature_height: int,
    feature_width: int,
    num_cells_x: int,
    num_cells_y: int,
    num_cells_z: int,
    backward: bool = False,
    kernel: str | int = 'auto',
    max_cols: int = 0,
    **capacities: int,
) -> Plan: ...  # Plan of BEV pooling from BEVDet's five arrays.

def neighbors(
    inputs: Array,
    offsets: Array | None = None,
    outputs: Array | None = None,
    output_offsets: Array | None = None,
    radius_m: float = 0.0,
    metric: str | int = 'ball',
    taps: int = 0,
    tap_size_m: float = 0.0,
    contents: int | str = 0,
    max_neighbors: int = 0,
    keep: str | int = 'nearest',
    seed: int = 0,
    max_pairs: int = 0,
    **capacities: int,
) -> Plan: ...  # Which inputs are neighbours of which outputs within a radius, at which tap.

def nearest_plan(
    inputs: Array,
    offsets: Array | None = None,
    **capacities: int,
) -> Plan: ...  # Data points, arranged for finding those nearest to others.

def nearest(
    queries: Array,
    nearest: Plan,
    offsets: Array | None = None,
    count: int = 1,
    distances2: bool = False,
) -> Array | tuple[Array, ...]: ...  # The count nearest data points of every query, by ascending distance.

def farthest(
    cloud: Array,
    offsets: Array | None = None,
    counts: Array | None = None,
    num_samples: int = 1,
    count: int = 1,
    distances2: bool = False,
) -> Array | tuple[Array, ...]: ...  # Farthest point sampling: rows of each sample, each as far as possible from those before it.

def point_level(
    fine: Array,
    offsets: Array | None = None,
    size_m: float = 0.0,
    origin_m: float | Sequence[float] | None = None,
    keep: str | int = 'nearest',
    seed: int = 0,
    gradients: str | int = 'none',
    max_cols: int = 0,
    **capacities: int,
) -> Plan: ...  # A coarser cloud: a point for each occupied voxel.

def point_level_cloud(
    level: Plan,
    offsets: bool = False,
) -> Array | tuple[Array, ...]: ...  # The points of a coarser cloud, and, where it was made with offsets, its own.

def point_level_kept(
    level: Plan,
    **capacities: int,
) -> Plan: ...  # Segments are coarse points, rows the fine points that they come from.

def point_level_voxels(
    level: Plan,
    **capacities: int,
) -> Plan: ...  # Segments are coarse points, rows all fine points of their voxels.

def interpolation(
    from_: Array,
    to: Array,
    offsets: Array | None = None,
    to_offsets: Array | None = None,
    count: int = 0,
    gradients: str | int = 'none',
    max_cols: int = 0,
    **capacities: int,
) -> Plan: ...  # Each point of one cloud takes the nearest of another by inverse distances.

def interpolation_segments(
    interpolation: Plan,
    **capacities: int,
) -> Plan: ...  # Segments are points that take, rows those that are taken.

def interpolation_weights(
    interpolation: Plan,
) -> Array: ...  # The weights of an interpolation.

def point_pyramid(
    finest: Array,
    offsets: Array | None = None,
    num_levels: int = 0,
    tap_size_m: float = 0.0,
    radius_taps: float = 0.0,
    metric: str | int = 'ball',
    taps: int = 0,
    contents: int | str = 0,
    keep: str | int = 'nearest',
    seed: int = 0,
    cover: bool = False,
    gradients: str | int = 'none',
    max_cols: int = 0,
    **capacities: int,
) -> Plan: ...  # All levels of a network on points.

def point_pyramid_level(
    pyramid: Plan,
    level: int = 0,
    **capacities: int,
) -> Plan: ...  # The downsampling from a level to the next.

def point_pyramid_within(
    pyramid: Plan,
    level: int = 0,
    **capacities: int,
) -> Plan: ...  # The neighbours within a level.

def point_pyramid_down(
    pyramid: Plan,
    level: int = 0,
    **capacities: int,
) -> Plan: ...  # The neighbours from a level to the next.

def buckets(
    cloud: Array,
    bucket_rows: int,
    offsets: Array | None = None,
    num_buckets: int = 0,
    num_rounds: int = 0,
    bits: int = 0,
    hashes: int | Sequence[int] | None = None,
    steps: int | Sequence[int] | None = None,
    size_m: float | Sequence[float] | None = None,
    origin_m: float | Sequence[float] | None = None,
    **capacities: int,
) -> Plan: ...  # The rows of a cloud in buckets by spatial hashes.

def buckets_rows(
    buckets: Plan,
    rows: bool = True,
    places: bool = True,
    row_buckets: bool = True,
) -> Array | tuple[Array, ...]: ...  # The row at each place of the buckets, the place of each row, and its bucket.

def patches(
    query_offsets: Array,
    num_rows: int,
    query_rows: Array | None = None,
    key_offsets: Array | None = None,
    key_rows: Array | None = None,
    num_key_rows: int = 0,
    **capacities: int,
) -> Plan: ...  # Which rows attend to which, from lists; num_key_rows: of keys that are rows of another matrix.

def patches_order(
    cloud: Array,
    patch_rows: int,
    offsets: Array | None = None,
    order: Array | None = None,
    borrow: bool = False,
    curve: str | int = 'zorder',
    bits: int = 0,
    size_m: float | Sequence[float] | None = None,
    origin_m: float | Sequence[float] | None = None,
    **capacities: int,
) -> Plan: ...  # Patches of rows that follow each other on a curve.

def patches_grid(
    cloud: Array,
    offsets: Array | None = None,
    window: int | Sequence[int] | None = None,
    shift: int | Sequence[int] | None = None,
    axes: int | Sequence[int] | None = None,
    set_rows: int = 0,
    even: bool = False,
    across: bool = False,
    borrow: bool = False,
    bits: int = 0,
    size_m: float | Sequence[float] | None = None,
    origin_m: float | Sequence[float] | None = None,
    **capacities: int,
) -> Plan: ...  # Patches of windows of a grid, or of sets of rows within them.

def patches_buckets(
    buckets: Plan,
    buckets_of: int = 0,
    stride: int = 0,
    shift: int = 0,
    in_places: bool = False,
    **capacities: int,
) -> Plan: ...  # Patches of neighbouring buckets.
