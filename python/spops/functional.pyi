# SPDX-License-Identifier: Apache-2.0
# Written by python -m spops._stubs from the list of operators.
from collections.abc import Sequence

import torch
from torch import Tensor

from ._plan import Plan
from .comm import Comm

def segments(
    keys: Tensor,
    num_segments: int,
    idx: Tensor | None = None,
    weight_idx: Tensor | None = None,
    num_terms: Tensor | None = None,
    num_rows: int = 0,
    num_weights: int = 0,
    order: str | int = 'unsorted',
    max_cols: int = 0,
    gradients: str | int = 'none',
) -> Plan: ...  # Plan of segments: term t belongs to segment keys[t], and takes row idx[t] and weight weight_idx[t].

def segments_offsets(
    offsets: Tensor,
    idx: Tensor | None = None,
    weight_idx: Tensor | None = None,
    num_rows: int = 0,
    num_weights: int = 0,
    max_cols: int = 0,
    gradients: str | int = 'none',
) -> Plan: ...  # Plan of segments: segment s has the terms offsets[s] to offsets[s + 1] - 1.

def segreduce(
    x: Tensor,
    segments: Plan,
    w: Tensor | None = None,
    reduce: str | int = 'sum',
    out: Tensor | None = None,
    arg: Tensor | bool = False,
) -> Tensor | tuple[Tensor, ...]: ...  # out[s] = reduce over the terms t of segment s of w[t] x[idx[t]].

def segreduce_backward(
    x: Tensor,
    grad_out: Tensor,
    segments: Plan,
    w: Tensor | None = None,
    reduce: str | int = 'sum',
    grad_x: Tensor | bool = True,
    grad_w: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of segreduce.

def gather(
    x: Tensor,
    rows: Plan,
    w: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor: ...  # out[t] = w[t] x[keys[t]], where keys are the segments of the plan's terms.

def gather_backward(
    x: Tensor,
    grad_out: Tensor,
    rows: Plan,
    w: Tensor | None = None,
    grad_x: Tensor | bool = True,
    grad_w: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of gather.

def rank(
    segments: Plan,
    ranks: Tensor | None = None,
) -> Tensor: ...  # ranks[t] = how many terms before t its segment has; -1 for a term that the plan left out.

def segment_softmax(
    x: Tensor,
    segments: Plan,
    out: Tensor | None = None,
) -> Tensor: ...  # out[t] = exp(x[t]) / sum over the terms u of t's segment of exp(x[u]), in every column.

def segment_softmax_backward(
    out: Tensor,
    grad_out: Tensor,
    segments: Plan,
    grad_x: Tensor | None = None,
) -> Tensor: ...  # Gradient of segment_softmax.

def segment_sort(
    x: Tensor,
    segments: Plan,
    descending: bool = False,
    values: Tensor | None = None,
    places: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...  # Values of each segment in order, stably, in every column; places: the terms that have them.

def segment_sort_backward(
    places: Tensor,
    grad_values: Tensor,
    segments: Plan,
    grad_x: Tensor | None = None,
) -> Tensor: ...  # Gradient of segment_sort.

def segment_topk(
    x: Tensor,
    segments: Plan,
    k: int = 1,
    smallest: bool = False,
    values: Tensor | None = None,
    places: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...  # The k largest values of each segment, or the smallest, in every column; places: the terms that have them, or -1.

def segment_topk_backward(
    places: Tensor,
    grad_values: Tensor,
    segments: Plan,
    k: int = 1,
    grad_x: Tensor | None = None,
) -> Tensor: ...  # Gradient of segment_topk.

def sddmm(
    q: Tensor,
    k: Tensor,
    segments: Plan,
    heads: int = 1,
    scale: float = 1.0,
    out: Tensor | None = None,
) -> Tensor: ...  # out[t, h] = scale times the product of q[s(t)] and k[idx[t]] in the columns of head h.

def sddmm_backward(
    q: Tensor,
    k: Tensor,
    grad_out: Tensor,
    segments: Plan,
    heads: int = 1,
    scale: float = 1.0,
    grad_q: Tensor | bool = True,
    grad_k: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of sddmm.

def spmm(
    w: Tensor,
    x: Tensor,
    segments: Plan,
    heads: int = 1,
    out: Tensor | None = None,
) -> Tensor: ...  # out[s] = sum over the terms t of segment s of w[t, h] x[idx[t]], in the columns of every head h.

def spmm_backward(
    w: Tensor,
    x: Tensor,
    grad_out: Tensor,
    segments: Plan,
    heads: int = 1,
    grad_w: Tensor | bool = True,
    grad_x: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of spmm.

def argsort(
    keys: Tensor,
    num_keys: Tensor | None = None,
    descending: bool = False,
    order: Tensor | None = None,
    sorted: Tensor | bool = False,
) -> Tensor | tuple[Tensor, ...]: ...  # The order that sorts keys, stably, and the sorted keys; after the keys that count -1 and 0.

def unique(
    keys: Tensor,
    num_keys: Tensor | None = None,
    values: Tensor | None = None,
    num_unique: Tensor | None = None,
    inverse: Tensor | bool = False,
    counts: Tensor | bool = False,
) -> Tensor | tuple[Tensor, ...]: ...  # The different keys, ascending, which of them each key is, and how many keys are each.

def triplets(
    matrices: Tensor,
    num_out: int,
    num_in: int,
    num_matrices: int,
    out_rows: Tensor | None = None,
    in_rows: Tensor | None = None,
    num_triplets: Tensor | None = None,
    order: str | int = 'unsorted',
    backward: bool = False,
    max_matrix_elements: int = 0,
) -> Plan: ...  # Plan of triplets: output row out_rows[t] takes input row in_rows[t] times matrix matrices[t].

def triplets_offsets(
    offsets: Tensor,
    backward: bool = False,
    max_matrix_elements: int = 0,
) -> Plan: ...  # Plan of rows times the matrix of their group: group k has the rows offsets[k] to offsets[k + 1] - 1.

def mvmr(
    x: Tensor,
    w: Tensor,
    triplets: Plan,
    s: Tensor | None = None,
    num_rows: Tensor | None = None,
    groups: int = 1,
    diagonal: bool = False,
    transposed: bool = False,
    reversed: bool = False,
    accumulate: bool = False,
    math: str | int = 'exact',
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor: ...  # out[i] = sum over triplets (i, j, k) of s[t] x[j] w[k].

def mvmr_backward(
    x: Tensor,
    w: Tensor,
    grad_out: Tensor,
    triplets: Plan,
    s: Tensor | None = None,
    num_rows: Tensor | None = None,
    groups: int = 1,
    diagonal: bool = False,
    transposed: bool = False,
    reversed: bool = False,
    accumulate: bool = False,
    math: str | int = 'exact',
    grad_x: Tensor | bool = True,
    grad_w: Tensor | bool = True,
    grad_s: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of mvmr.

def vvor(
    x: Tensor,
    g: Tensor,
    triplets: Plan,
    s: Tensor | None = None,
    num_rows: Tensor | None = None,
    groups: int = 1,
    diagonal: bool = False,
    transposed: bool = False,
    reversed: bool = False,
    accumulate: bool = False,
    math: str | int = 'exact',
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor: ...  # out[k] = sum over triplets (i, j, k) of s[t] x[j] (x) g[i]: the gradient of matrices.

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
) -> Plan: ...  # Plan of the sparse convolutions of a kernel map.

def sparseconv(
    x: Tensor,
    w: Tensor,
    conv: Plan,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
    x_scales: Tensor | None = None,
    groups: int = 1,
    activation: str | int = 'none',
    math: str | int = 'exact',
    x_scales_by_channel: bool = False,
    activation_slope: float = 0.0,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor: ...  # out[i] = activation((sum over pairs (i, j, k) of x[j] w[k] + bias) scale + shift + residual[i]).

def sparseconv_quantized(
    x: Tensor,
    w: Tensor,
    conv: Plan,
    x_scale: Tensor | None = None,
    w_scales: Tensor | None = None,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
    residual_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    fast_sums: bool = False,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor: ...  # sparseconv of codes: (sum x_scale w_scales + bias) scale + shift + residual, and activation; over out_scale.

def sparseconv_backward(
    x: Tensor,
    w: Tensor,
    grad_sum: Tensor,
    conv: Plan,
    groups: int = 1,
    math: str | int = 'exact',
    grad_x: Tensor | bool = True,
    grad_w: Tensor | bool = True,
    grad_bias: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of the sum of sparseconv, and of its bias.

def pointconv_plan(
    neighbors: Plan,
    backward: bool = False,
    dataflow: str | int = 'auto',
    max_in_channels: int = 0,
    max_out_channels: int = 0,
    sums: str | int = 'auto',
    quantized: bool = False,
    crop_independent: bool = False,
) -> Plan: ...  # Plan of the convolutions over the neighbours of points.

def pointconv(
    x: Tensor,
    w: Tensor,
    conv: Plan,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
    x_scales: Tensor | None = None,
    groups: int = 1,
    activation: str | int = 'none',
    math: str | int = 'exact',
    x_scales_by_channel: bool = False,
    activation_slope: float = 0.0,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor: ...  # out[i] = activation((sum over neighbours (i, j, k) of x[j] w[k] + bias) scale + shift + residual[i]).

def pointconv_backward(
    x: Tensor,
    w: Tensor,
    grad_sum: Tensor,
    conv: Plan,
    groups: int = 1,
    math: str | int = 'exact',
    grad_x: Tensor | bool = True,
    grad_w: Tensor | bool = True,
    grad_bias: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of the sum of pointconv, and of its bias.

def pool_plan(
    map: Plan,
    gradients: str | int = 'none',
    max_cols: int = 0,
) -> Plan: ...  # Plan of pooling over the windows of a kernel map.

def pool_global_plan(
    coords: Plan,
    num_batches: int,
    gradients: str | int = 'none',
    max_cols: int = 0,
) -> Plan: ...  # Plan of global pooling: row b pools the rows of batch b.

def pool_buckets_plan(
    buckets: Plan,
    sub_rows: int,
    gradients: str | int = 'none',
    max_cols: int = 0,
) -> Plan: ...  # Plan of pooling neighbouring rows of a bucket.

def pool_segments(
    pool: Plan,
) -> Plan: ...  # The segments of a pooling plan: output rows, with the rows that they pool.

def pool(
    x: Tensor,
    pool: Plan,
    reduce: str | int = 'max',
    out: Tensor | None = None,
) -> Tensor: ...  # out[i] = reduce over the rows j that are pooled into i of x[j].

def pool_backward(
    x: Tensor,
    grad_out: Tensor,
    pool: Plan,
    reduce: str | int = 'max',
    grad_x: Tensor | None = None,
) -> Tensor: ...  # Gradient of pool.

def bevpool(
    feat: Tensor,
    depth: Tensor,
    plan: Plan,
    feat_scales: Tensor | None = None,
    feat_scale: Tensor | None = None,
    depth_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    layout: str | int = 'channels_last',
    accumulate: str | int = 'f32',
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor: ...  # out[cell] = sum over points p of a cell of depth[p] feat[pixel(p)], times feat_scale depth_scale / out_scale.

def bevpool_backward(
    feat: Tensor,
    depth: Tensor,
    grad_out: Tensor,
    plan: Plan,
    layout: str | int = 'channels_last',
    grad_depth: Tensor | bool = True,
    grad_feat: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of bevpool.

def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    patches: Plan,
    positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    bias_coords: Tensor | None = None,
    bias_key_coords: Tensor | None = None,
    bias_table: Tensor | None = None,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    heads: int = 1,
    scale: float = 0.0,
    math: str | int = 'exact',
    rotary_base: float = 0.0,
    rotary_axis_dim: int = 0,
    kv_heads: int = 0,
    epsilon: float = 0.0,
    o: Tensor | None = None,
    lse: Tensor | bool = False,
) -> Tensor | tuple[Tensor, ...]: ...  # o[i] = sum over the keys j of i's patch of softmax(scale q[i] k[j] + bias) v[j], for every head.

def attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    grad_o: Tensor,
    patches: Plan,
    positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    bias_coords: Tensor | None = None,
    bias_key_coords: Tensor | None = None,
    bias_table: Tensor | None = None,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    heads: int = 1,
    scale: float = 0.0,
    math: str | int = 'exact',
    rotary_base: float = 0.0,
    rotary_axis_dim: int = 0,
    kv_heads: int = 0,
    epsilon: float = 0.0,
    grad_q: Tensor | bool = True,
    grad_k: Tensor | bool = True,
    grad_v: Tensor | bool = True,
    grad_table: Tensor | bool = True,
    grad_q_weight: Tensor | bool = True,
    grad_k_weight: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of attention.

def linear(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
    num_rows: Tensor | None = None,
    w_transposed: bool = False,
    activation: str | int = 'none',
    math: str | int = 'exact',
    activation_slope: float = 0.0,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor: ...  # out[i] = activation((x[i] w + bias) scale + shift + residual[i]).

def linear_quantized(
    x: Tensor,
    w: Tensor,
    x_scale: Tensor | None = None,
    w_scales: Tensor | None = None,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
    residual_scale: Tensor | None = None,
    out_scale: Tensor | None = None,
    num_rows: Tensor | None = None,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    fast_sums: bool = False,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor: ...  # linear of codes: (sum x_scale w_scales + bias) scale + shift + residual, and activation; over out_scale.

def linear_backward(
    x: Tensor,
    w: Tensor,
    grad_sum: Tensor,
    num_rows: Tensor | None = None,
    w_transposed: bool = False,
    math: str | int = 'exact',
    grad_x: Tensor | bool = True,
    grad_w: Tensor | bool = True,
    grad_bias: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of the sum of linear, and of its bias.

def convert(
    x: Tensor,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor: ...  # out = x, rounded to the dtype of out.

def convert_indices(
    x: Tensor,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor: ...  # out = x; -1 where i32 cannot hold it.

def activation(
    x: Tensor,
    num_rows: Tensor | None = None,
    kind: str | int = 'relu',
    activation_slope: float = 0.0,
    out: Tensor | None = None,
) -> Tensor: ...  # out[r, c] = activation(x[r, c]).

def activation_backward(
    x: Tensor,
    grad_out: Tensor,
    num_rows: Tensor | None = None,
    kind: str | int = 'relu',
    activation_slope: float = 0.0,
    grad_x: Tensor | None = None,
) -> Tensor: ...  # Gradient of activation: grad_x[r, c] = grad_out[r, c] activation'(x[r, c]).

def add(
    x: Tensor,
    y: Tensor,
    num_rows: Tensor | None = None,
    scale: float = 1.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    out: Tensor | None = None,
) -> Tensor: ...  # out[r, c] = activation(x[r, c]) + scale y[r, c].

def add_backward(
    x: Tensor,
    grad_out: Tensor,
    num_rows: Tensor | None = None,
    scale: float = 1.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    grad_x: Tensor | bool = True,
    grad_y: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of add.

def batchnorm_statistics(
    x: Tensor,
    num_rows: Tensor | None = None,
    momentum: float = 0.0,
    mean: Tensor | None = None,
    var: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
) -> Tensor | tuple[Tensor, ...]: ...  # Mean and variance of every column, and the running ones of training.

def batchnorm(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    num_rows: Tensor | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    fixed_statistics: bool = False,
    out: Tensor | None = None,
) -> Tensor: ...  # out[r, c] = activation((x[r, c] - mean[c]) gamma[c] / sqrt(var[c] + epsilon) + beta[c]).

def batchnorm_backward(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    grad_out: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    num_rows: Tensor | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    fixed_statistics: bool = False,
    activation_slope: float = 0.0,
    grad_x: Tensor | None = None,
    grad_gamma: Tensor | bool = True,
    grad_beta: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of batchnorm after batchnorm_statistics; of constant statistics with fixed_statistics.

def batchnorm_merge(
    statistics: Tensor,
    chunk_rows: Tensor,
    momentum: float = 0.0,
    mean: Tensor | None = None,
    var: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
) -> Tensor | tuple[Tensor, ...]: ...  # Mean and variance of every column of rows in several places, from those of each: rows of mean, then var.

def batchnorm_sums(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    grad_out: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    num_rows: Tensor | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    grad_gamma: Tensor | None = None,
    grad_beta: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...  # The sums of batchnorm_backward over the rows of one place.

def batchnorm_gradient(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    grad_gamma: Tensor,
    grad_beta: Tensor,
    grad_out: Tensor,
    total_rows: int,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    num_rows: Tensor | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    grad_x: Tensor | None = None,
) -> Tensor: ...  # The gradient of x of batchnorm_backward, from the sums over the total_rows rows of all places.

def layernorm(
    x: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    num_rows: Tensor | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    out: Tensor | None = None,
) -> Tensor: ...  # out[r, c] = activation((x[r, c] - mean[r]) gamma[c] / sqrt(var[r] + epsilon) + beta[c]).

def layernorm_backward(
    x: Tensor,
    grad_out: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    num_rows: Tensor | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    grad_x: Tensor | None = None,
    grad_gamma: Tensor | bool = True,
    grad_beta: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of layernorm.

def rmsnorm(
    x: Tensor,
    gamma: Tensor | None = None,
    num_rows: Tensor | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    out: Tensor | None = None,
) -> Tensor: ...  # out[r, c] = activation(x[r, c] gamma[c] / sqrt(mean over c of x[r, c]^2 + epsilon)).

def rmsnorm_backward(
    x: Tensor,
    grad_out: Tensor,
    gamma: Tensor | None = None,
    num_rows: Tensor | None = None,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    grad_x: Tensor | None = None,
    grad_gamma: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of rmsnorm.

def addnorm(
    x: Tensor,
    y: Tensor,
    y_gamma: Tensor | None = None,
    y_beta: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    num_rows: Tensor | None = None,
    norm_y: bool = False,
    rms: bool = False,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    total: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...  # total = x + y, or x + the norm of y; out = activation(the norm of total): layer norm, or RMS norm with rms.

def addnorm_backward(
    total: Tensor,
    y: Tensor,
    grad_out: Tensor,
    y_gamma: Tensor | None = None,
    y_beta: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    grad_total: Tensor | None = None,
    num_rows: Tensor | None = None,
    norm_y: bool = False,
    rms: bool = False,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    grad_x: Tensor | None = None,
    grad_y: Tensor | None = None,
    grad_y_gamma: Tensor | bool = True,
    grad_y_beta: Tensor | bool = True,
    grad_gamma: Tensor | bool = True,
    grad_beta: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of addnorm.

def groupnorm_statistics(
    x: Tensor,
    samples: Plan,
    groups: int = 1,
    mean: Tensor | None = None,
    var: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...  # Mean and variance of every sample, a segment of rows, and group of columns; groups = C: instance norm.

def groupnorm(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    samples: Plan,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    groups: int = 1,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    activation_slope: float = 0.0,
    fixed_statistics: bool = False,
    out: Tensor | None = None,
) -> Tensor: ...  # out[r, c] = activation((x[r, c] - mean[s, k]) gamma[c] / sqrt(var[s, k] + epsilon) + beta[c]) of row r of sample s.

def groupnorm_backward(
    x: Tensor,
    mean: Tensor,
    var: Tensor,
    grad_out: Tensor,
    samples: Plan,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    groups: int = 1,
    epsilon: float = 0.0,
    activation: str | int = 'none',
    fixed_statistics: bool = False,
    activation_slope: float = 0.0,
    grad_x: Tensor | None = None,
    grad_gamma: Tensor | bool = True,
    grad_beta: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # Gradients of groupnorm after groupnorm_statistics; of constant statistics with fixed_statistics.

def quantize_scale(
    x: Tensor,
    dtype: str | int = 'f8e4m3',
    scale: Tensor | None = None,
) -> Tensor: ...  # The scale that makes the largest magnitude of x the largest value of dtype.

def quantize(
    x: Tensor,
    scale: Tensor | None = None,
    out: Tensor | None = None,
    block_scales: Tensor | bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, ...]: ...  # out = x / scale, rounded to 8 or 4 bits.

def quantize_weights(
    w: Tensor,
    taps: int = 1,
    w_transposed: bool = False,
    q: Tensor | None = None,
    scales: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]: ...  # Weights of a layer as codes, an output channel a row, with a scale for each.

def dequantize(
    q: Tensor,
    scale: Tensor | None = None,
    block_scales: Tensor | None = None,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor: ...  # out = scale q, times the scales of blocks.

def coords(
    rows: Tensor,
    num_rows: Tensor | None = None,
    order: str | int = 'given',
    search: str | int = 'auto',
    duplicates: str | int = 'refuse',
    lower: int | Sequence[int] | None = None,
    upper: int | Sequence[int] | None = None,
    max_grid_bytes: int = 0,
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
) -> Plan: ...  # Outputs of a generative transposed convolution over a set.

def coords_union(
    a: Plan,
    b: Plan,
    order: str | int = 'given',
    search: str | int = 'auto',
    lower: int | Sequence[int] | None = None,
    upper: int | Sequence[int] | None = None,
    max_grid_bytes: int = 0,
) -> Plan: ...  # The rows of a, then those of b that are not in a.

def coords_pruned(
    keep: Tensor,
    in_: Plan,
    order: str | int = 'given',
    search: str | int = 'auto',
    lower: int | Sequence[int] | None = None,
    upper: int | Sequence[int] | None = None,
    max_grid_bytes: int = 0,
) -> Plan: ...  # The rows of a set whose keep is not 0.

def coords_children(
    keep: Tensor,
    in_: Plan,
    factor: int = 2,
    order: str | int = 'given',
    search: str | int = 'auto',
    lower: int | Sequence[int] | None = None,
    upper: int | Sequence[int] | None = None,
    max_grid_bytes: int = 0,
) -> Plan: ...  # The factor^dims children of each row whose keep is not 0.

def coords_grown(
    marks: Tensor,
    in_: Plan,
    size: int | Sequence[int] | None = None,
    dilation: int | Sequence[int] | None = None,
    order: str | int = 'given',
    search: str | int = 'auto',
    lower: int | Sequence[int] | None = None,
    upper: int | Sequence[int] | None = None,
    max_grid_bytes: int = 0,
) -> Plan: ...  # The rows of a set, then the cells of windows around rows whose mark is not 0.

def coords_rows(
    coords: Plan,
    rows: Tensor | None = None,
    num_rows: Tensor | None = None,
    items: Tensor | bool = False,
) -> Tensor | tuple[Tensor, ...]: ...  # Rows of a set, how many are in use, and which of the rows that it was made from each is, the first of equal ones.

def dense(
    x: Tensor,
    coords: Plan,
    layout: str | int = 'channels_first',
    num_batches: int = 1,
    size0: int = 1,
    size1: int = 1,
    size2: int = 1,
    size3: int = 1,
    origin: int | Sequence[int] | None = None,
    fill: float = 0.0,
    out: Tensor | None = None,
) -> Tensor: ...  # Rows of a set as a dense grid; fill where there is no row.

def dense_backward(
    grad_out: Tensor,
    coords: Plan,
    layout: str | int = 'channels_first',
    num_batches: int = 1,
    size0: int = 1,
    size1: int = 1,
    size2: int = 1,
    size3: int = 1,
    origin: int | Sequence[int] | None = None,
    grad_x: Tensor | None = None,
) -> Tensor: ...  # Gradient of dense.

def dense_rows(
    dense: Tensor,
    coords: Plan,
    layout: str | int = 'channels_first',
    num_batches: int = 1,
    size0: int = 1,
    size1: int = 1,
    size2: int = 1,
    size3: int = 1,
    origin: int | Sequence[int] | None = None,
    out: Tensor | None = None,
) -> Tensor: ...  # Cells of a dense grid as rows of a set; 0 where a row is outside the grid.

def dense_rows_backward(
    grad_out: Tensor,
    coords: Plan,
    layout: str | int = 'channels_first',
    num_batches: int = 1,
    size0: int = 1,
    size1: int = 1,
    size2: int = 1,
    size3: int = 1,
    origin: int | Sequence[int] | None = None,
    grad_dense: Tensor | None = None,
) -> Tensor: ...  # Gradient of dense_rows.

def channel_to_space(
    x: Tensor,
    coarse: Plan,
    fine: Plan,
    factor: int = 2,
    out: Tensor | None = None,
) -> Tensor: ...  # Channels of coarse rows as rows of their factor^dims children; 0 for a fine row without a coarse one.

def channel_to_space_backward(
    grad_out: Tensor,
    coarse: Plan,
    fine: Plan,
    factor: int = 2,
    grad_x: Tensor | None = None,
) -> Tensor: ...  # Gradient of channel_to_space.

def space_to_channel(
    x: Tensor,
    coarse: Plan,
    fine: Plan,
    factor: int = 2,
    out: Tensor | None = None,
) -> Tensor: ...  # Rows of children as channels of their coarse row; 0 for a child that is not there.

def space_to_channel_backward(
    grad_out: Tensor,
    coarse: Plan,
    fine: Plan,
    factor: int = 2,
    grad_x: Tensor | None = None,
) -> Tensor: ...  # Gradient of space_to_channel.

def voxels(
    points: Tensor,
    batch: Tensor | None = None,
    num_points: Tensor | None = None,
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
) -> Plan: ...  # The voxels that points lie in; with lower_m and upper_m, points outside are left out.

def voxels_coords(
    voxels: Plan,
) -> Plan: ...  # The voxels as a set of coordinates.

def voxels_padded(
    x: Tensor,
    voxels: Plan,
    out: Tensor | None = None,
    num_points: Tensor | bool = False,
) -> Tensor | tuple[Tensor, ...]: ...  # Rows of the points that voxels hold, most_points places a voxel, zero where there is no point.

def voxels_padded_backward(
    grad_out: Tensor,
    voxels: Plan,
    grad_x: Tensor | None = None,
) -> Tensor: ...  # Gradient of voxels_padded.

def voxels_segments(
    voxels: Plan,
) -> Plan: ...  # Segments are voxels, rows are points.

def devoxels(
    points: Tensor,
    coords: Plan,
    batch: Tensor | None = None,
    num_points: Tensor | None = None,
    size_m: float | Sequence[float] | None = None,
    origin_m: float | Sequence[float] | None = None,
    interpolation: str | int = 'nearest',
    missing: str | int = 'zero',
    gradients: str | int = 'none',
    max_cols: int = 0,
) -> Plan: ...  # The relation that brings features of voxels to points.

def devoxels_segments(
    devoxels: Plan,
) -> Plan: ...  # Segments are points, rows are voxels.

def devoxels_weights(
    devoxels: Plan,
    weights: Tensor | None = None,
) -> Tensor: ...  # The weights of a relation from voxels to points.

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
) -> Plan: ...  # Which input row meets which output row at which tap of a kernel.

def kernel_map_inverse(
    of: Plan,
    contents: int | str = 0,
    tile_rows: int = 0,
) -> Plan: ...  # A map with inputs and outputs exchanged.

def pyramid(
    finest: Plan,
    num_levels: int = 0,
    contents: int | str = 0,
    order: str | int = 'given',
    search: str | int = 'auto',
) -> Plan: ...  # The sets and kernel maps of all levels of a U-Net.

def pyramid_coords(
    pyramid: Plan,
    level: int = 0,
) -> Plan: ...  # A level's coordinates.

def pyramid_map(
    pyramid: Plan,
    relation: str | int = 'within',
    level: int = 0,
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
    transforms: Tensor | None = None,
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
    device: torch.device | str | None = None,
) -> Plan: ...  # Plan of BEV pooling from up to 64 cameras, with 9, 16 and 6 numbers each; left out: of the identity.

def bev_plan_ranks(
    ranks_depth: Tensor,
    ranks_feat: Tensor,
    ranks_bev: Tensor,
    interval_starts: Tensor,
    interval_lengths: Tensor,
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
) -> Plan: ...  # Plan of BEV pooling from BEVDet's five arrays.

def partition(
    coords: Plan,
    weights: Tensor | None = None,
    comm: Comm | None = None,
    num_chunks: int = 0,
    cell_log2: int = 0,
    order: str | int = 'given',
    first_chunk: int | Sequence[int] | None = None,
) -> Plan: ...  # Which rank owns which places: chunks along a curve, of weight alike, dealt to the ranks of comm.

def partition_chunks(
    partition: Plan,
    first_chunk: Tensor | None = None,
    chunk_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...  # The chunks of rank r, first_chunk[r] to first_chunk[r + 1] - 1, and the weight of every chunk.

def partition_box(
    partition: Plan,
    stride: int | Sequence[int] | None = None,
    lower: Tensor | None = None,
    upper: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...  # The box of a level, batch first: a set in it and in the partition's order has its rows by chunk.

def partition_find(
    rows: Tensor,
    partition: Plan,
    stride: int | Sequence[int] | None = None,
    chunks: Tensor | None = None,
) -> Tensor: ...  # The chunk of each row of a level; -1 outside of the partition's box.

def halo(
    owned: Plan,
    partition: Plan,
    comm: Comm,
    stride: int | Sequence[int] | None = None,
    reach: int | Sequence[int] | None = None,
    max_cols: int = 0,
) -> Plan: ...  # The rows of a level that a rank reads and another owns: ghosts, which lie after its own rows.

def halo_coords(
    halo: Plan,
) -> Plan: ...  # The rows of a halo as a set: owned rows, then ghosts.

def halo_chunks(
    halo: Plan,
    chunk_offsets: Tensor | None = None,
    all_chunk_rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...  # Where this rank's chunks begin among its rows, and how many rows every chunk of all ranks has.

def halo_refresh(
    x: Tensor,
    halo: Plan,
    out: Tensor | None = None,
) -> Tensor: ...  # out = owned rows x, then what the owners of ghosts have.

def chunk_sums_plan(
    partition: Plan,
    comm: Comm,
    max_values: int,
) -> Plan: ...  # Plan of sums over the chunks of all ranks.

def chunk_sums(
    partials: Tensor,
    sums: Plan,
    out: Tensor | None = None,
) -> Tensor: ...  # out[c] = sum over the chunks of all ranks of partials[chunk, c], along one tree.

def neighbors(
    inputs: Tensor,
    offsets: Tensor | None = None,
    outputs: Tensor | None = None,
    output_offsets: Tensor | None = None,
    radius_m: float = 0.0,
    metric: str | int = 'ball',
    taps: int = 0,
    tap_size_m: float = 0.0,
    contents: int | str = 0,
    max_neighbors: int = 0,
    keep: str | int = 'nearest',
    seed: int = 0,
    max_pairs: int = 0,
) -> Plan: ...  # Which inputs are neighbours of which outputs within a radius, at which tap.

def nearest_plan(
    inputs: Tensor,
    offsets: Tensor | None = None,
) -> Plan: ...  # Data points, arranged for finding those nearest to others.

def nearest(
    queries: Tensor,
    nearest: Plan,
    offsets: Tensor | None = None,
    count: int = 1,
    rows: Tensor | None = None,
    distances2: Tensor | bool = False,
) -> Tensor | tuple[Tensor, ...]: ...  # The count nearest data points of every query, by ascending distance.

def farthest(
    cloud: Tensor,
    offsets: Tensor | None = None,
    counts: Tensor | None = None,
    num_samples: int = 1,
    count: int = 1,
    rows: Tensor | None = None,
    distances2: Tensor | bool = False,
) -> Tensor | tuple[Tensor, ...]: ...  # Farthest point sampling: rows of each sample, each as far as possible from those before it.

def point_level(
    fine: Tensor,
    offsets: Tensor | None = None,
    size_m: float = 0.0,
    origin_m: float | Sequence[float] | None = None,
    keep: str | int = 'nearest',
    seed: int = 0,
    gradients: str | int = 'none',
    max_cols: int = 0,
) -> Plan: ...  # A coarser cloud: a point for each occupied voxel.

def point_level_cloud(
    level: Plan,
    points: Tensor | None = None,
    offsets: Tensor | bool = False,
) -> Tensor | tuple[Tensor, ...]: ...  # The points of a coarser cloud, and, where it was made with offsets, its own.

def point_level_kept(
    level: Plan,
) -> Plan: ...  # Segments are coarse points, rows the fine points that they come from.

def point_level_voxels(
    level: Plan,
) -> Plan: ...  # Segments are coarse points, rows all fine points of their voxels.

def interpolation(
    from_: Tensor,
    to: Tensor,
    offsets: Tensor | None = None,
    to_offsets: Tensor | None = None,
    count: int = 0,
    gradients: str | int = 'none',
    max_cols: int = 0,
) -> Plan: ...  # Each point of one cloud takes the nearest of another by inverse distances.

def interpolation_segments(
    interpolation: Plan,
) -> Plan: ...  # Segments are points that take, rows those that are taken.

def interpolation_weights(
    interpolation: Plan,
    weights: Tensor | None = None,
) -> Tensor: ...  # The weights of an interpolation.

def point_pyramid(
    finest: Tensor,
    offsets: Tensor | None = None,
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
) -> Plan: ...  # All levels of a network on points.

def point_pyramid_level(
    pyramid: Plan,
    level: int = 0,
) -> Plan: ...  # The downsampling from a level to the next.

def point_pyramid_within(
    pyramid: Plan,
    level: int = 0,
) -> Plan: ...  # The neighbours within a level.

def point_pyramid_down(
    pyramid: Plan,
    level: int = 0,
) -> Plan: ...  # The neighbours from a level to the next.

def buckets(
    cloud: Tensor,
    bucket_rows: int,
    offsets: Tensor | None = None,
    num_buckets: int = 0,
    num_rounds: int = 0,
    bits: int = 0,
    hashes: int | Sequence[int] | None = None,
    steps: int | Sequence[int] | None = None,
    size_m: float | Sequence[float] | None = None,
    origin_m: float | Sequence[float] | None = None,
) -> Plan: ...  # The rows of a cloud in buckets by spatial hashes.

def buckets_rows(
    buckets: Plan,
    rows: Tensor | bool = True,
    places: Tensor | bool = True,
    row_buckets: Tensor | bool = True,
) -> Tensor | tuple[Tensor, ...]: ...  # The row at each place of the buckets, the place of each row, and its bucket.

def patches(
    query_offsets: Tensor,
    num_rows: int,
    query_rows: Tensor | None = None,
    key_offsets: Tensor | None = None,
    key_rows: Tensor | None = None,
    num_key_rows: int = 0,
) -> Plan: ...  # Which rows attend to which, from lists; num_key_rows: of keys that are rows of another matrix.

def patches_order(
    cloud: Tensor,
    patch_rows: int,
    offsets: Tensor | None = None,
    order: Tensor | None = None,
    borrow: bool = False,
    curve: str | int = 'zorder',
    bits: int = 0,
    size_m: float | Sequence[float] | None = None,
    origin_m: float | Sequence[float] | None = None,
) -> Plan: ...  # Patches of rows that follow each other on a curve.

def patches_grid(
    cloud: Tensor,
    offsets: Tensor | None = None,
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
) -> Plan: ...  # Patches of windows of a grid, or of sets of rows within them.

def patches_buckets(
    buckets: Plan,
    buckets_of: int = 0,
    stride: int = 0,
    shift: int = 0,
    in_places: bool = False,
) -> Plan: ...  # Patches of neighbouring buckets.
