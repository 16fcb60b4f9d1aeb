# SPDX-License-Identifier: Apache-2.0
"""Networks of others, run from their own source on spops, against the same source on dense convolutions
and plain attention of torch: outputs and all gradients.

    SpUNet (v1m1), Point Transformer V3 (m1)   POINTCEPT_SOURCE: a checkout of Pointcept
    VoxelResBackBone8x, VoxelBackBone8x        OPENPCDET_SOURCE: a checkout of OpenPCDet

They are skipped by name where the folder is not named.
"""
import types

import dense_spconv
import numpy as np
import pytest
import sources
import torch

import spops.compat

torch.backends.cudnn.allow_tf32 = False  # of the reference's convolutions


def source(variable, what):
    root = sources.folder(variable)
    if root is None:
        pytest.skip(f"{what}: {variable} names no checkout")
    return root


def voxels(n, shape, batches=2, seed=0):
    """n rows in each batch: (offset, grid [n, 3])."""
    g = torch.Generator("cpu").manual_seed(seed)
    total = shape[0] * shape[1] * shape[2]
    rows = []
    for _ in range(batches):
        flat = torch.randperm(total, generator=g, device="cpu")[:n].to(torch.get_default_device())
        rows.append(torch.stack([flat // (shape[1] * shape[2]), flat // shape[2] % shape[1], flat % shape[2]], 1))
    return torch.tensor([n * (i + 1) for i in range(batches)]), torch.cat(rows)


def run(net, call, seed=3):
    """Outputs of net and the gradients of its parameters for an output's gradient by seed."""
    net.zero_grad()
    torch.manual_seed(seed)  # Point Transformer V3 shuffles its orders when it pools
    out = call(net)
    g = torch.Generator("cpu").manual_seed(seed)
    out.backward(torch.randn(out.shape, generator=g, device="cpu").to(out))
    return out.detach(), {k: p.grad for k, p in net.named_parameters()}


def compare(mine, reference, call, tolerance):
    """Both with the reference's weights."""
    mine.load_state_dict(reference.state_dict())
    out, grads = run(mine, call)
    ref, ref_grads = run(reference, call)
    assert out.shape == ref.shape and ref.abs().max() > 1e-3
    torch.testing.assert_close(out, ref, rtol=tolerance, atol=tolerance * float(ref.abs().max()))
    assert grads.keys() == ref_grads.keys()
    largest = max(float(g.norm()) for g in ref_grads.values())
    for k, g in ref_grads.items():  # a gradient that cancels is compared with the largest one
        assert float((grads[k] - g).norm()) <= 20 * tolerance * (float(g.norm()) + 1e-4 * largest), k
    for (k, a), b in zip(mine.named_buffers(), reference.buffers()):
        torch.testing.assert_close(a.float(), b.float(), rtol=10 * tolerance, atol=10 * tolerance, msg=k)


def test_spunet():
    root = source("POINTCEPT_SOURCE", "SpUNet of Pointcept")
    name = "sparse_unet.spconv_unet_v1m1_base"
    mine, theirs = (sources.pointcept(root, m, name) for m in (spops.compat.modules("spconv"), dense_spconv.modules()))
    torch.manual_seed(1)
    small = dict(base_channels=8, channels=(8, 12, 16, 20, 20, 16, 12, 8), layers=(1, 1, 1, 1, 1, 1, 1, 1))
    nets = [space.SpUNetBase(4, 5, **small) for space in (mine, theirs)]
    offset, grid = voxels(150, (17, 14, 12))
    feat = torch.randn(len(grid), 4)
    compare(*nets, lambda net: net(dict(grid_coord=grid, feat=feat, offset=offset)), 2e-4)


def plain_flash_attn():
    """flash_attn by plain attention of torch, in f64."""

    def attend(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None):
        parts = []
        for a, b in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()):
            q, k, v = qkv[a:b].double().permute(1, 2, 0, 3)
            parts.append((torch.softmax(softmax_scale * q @ k.mT, -1) @ v).transpose(0, 1))
        return torch.cat(parts).to(qkv.dtype)

    return types.SimpleNamespace(flash_attn_varlen_qkvpacked_func=attend)


def plain_torch_scatter():
    """segment_csr by torch.segment_reduce."""
    return types.SimpleNamespace(segment_csr=lambda src, indptr, reduce: torch.segment_reduce(src, reduce, offsets=indptr, axis=0))


@pytest.mark.parametrize("exact", [True, False], ids=["attention in f32", "attention in bf16, as theirs"])
def test_point_transformer_v3(exact, monkeypatch):
    root = source("POINTCEPT_SOURCE", "Point Transformer V3 of Pointcept")
    plain = {**dense_spconv.modules(), "flash_attn": plain_flash_attn(), "torch_scatter": plain_torch_scatter()}
    stand = spops.compat.modules("spconv", "flash_attn", "torch_scatter")
    mine, theirs = (sources.pointcept(root, m, "point_transformer_v3.point_transformer_v3m1_base") for m in (stand, plain))
    if exact:  # their file casts to bf16 before flash_attn; here its torch has f32 under that name
        for space in (mine, theirs):
            space.torch = types.SimpleNamespace(**{**vars(torch), "bfloat16": torch.float32})
    small = dict(
        stride=(2, 2), enc_depths=(1, 1, 1), enc_channels=(32, 32, 64), enc_num_head=(2, 2, 4), enc_patch_size=(16, 16, 16),
        dec_depths=(1, 1), dec_channels=(32, 32), dec_num_head=(2, 2), dec_patch_size=(16, 16), drop_path=0.0, shuffle_orders=False,
    )  # fmt: skip
    torch.manual_seed(2)
    nets = [space.PointTransformerV3(6, order=("z", "hilbert"), **small) for space in (mine, theirs)]
    offset, grid = voxels(120, (16, 16, 16))
    feat = torch.randn(len(grid), 6)
    data = dict(coord=grid.float() * 0.1, grid_coord=grid, feat=feat, offset=offset, grid_size=0.1)
    compare(*nets, lambda net: net(dict(data)).feat, 2e-4 if exact else 2e-2)


@pytest.mark.parametrize("name", ["VoxelResBackBone8x", "VoxelBackBone8x"])
def test_centerpoints_encoder(name):
    root = source("OPENPCDET_SOURCE", f"{name} of OpenPCDet")
    mine, theirs = (sources.openpcdet(root, m) for m in (spops.compat.modules("spconv"), dense_spconv.modules()))
    torch.manual_seed(4)
    nets = [getattr(space, name)({}, 5, np.array([24, 20, 40])) for space in (mine, theirs)]
    offset, grid = voxels(200, (41, 20, 24))
    batch = torch.arange(2).repeat_interleave(200)
    coords = torch.cat([batch[:, None], grid], 1)
    feats = torch.randn(len(coords), 5)

    def call(net):
        data = net(dict(voxel_features=feats, voxel_coords=coords, batch_size=2))
        assert data["multi_scale_3d_features"]["x_conv3"].features.shape[1] == 64
        return data["encoded_spconv_tensor"].dense()

    compare(*nets, call, 2e-4)
