/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of convolutions: the layout that this library takes, and those of other libraries.
 *
 * Every convolution here takes weights as [taps][C_in / groups][C_out], taps numbered as in
 * spops_kernel_shape (last axis fastest). Weights of another library hold the same numbers in
 * another order; loaded as they are they raise no error and give wrong results, so convert them.
 *
 * A layer has a padding and a set of outputs too, and a wrong one raises no error either. Those of
 * each library's layers, in the terms of spops/coords.h and spops/kernel_map.h: size, s, p, d and n
 * are an axis's kernel size, stride, the layer's own padding, dilation and extent of the inputs; a
 * quotient of whole numbers is rounded down. docs/weights.md has the same table with the sources.
 *
 *     layer                         map            padding              outputs
 *     spconv SubMConv               SUBMANIFOLD    the centre           the inputs
 *     spconv SparseConv             CONVOLUTION    p                    downsampled (1)
 *     spconv SparseConvTranspose    TRANSPOSED     p                    upsampled (2)
 *     spconv SparseInverseConv      create_inverse of the layer that went down
 *     Minkowski Convolution         CONVOLUTION    d (size / 2), where  floor(in / s) (3)
 *                                                  size is even 0
 *     Minkowski ConvolutionTranspose, GenerativeConvolutionTranspose
 *                                   TRANSPOSED     the same             upsampled (4)
 *     TorchSparse Conv3d, stride 1  CONVOLUTION    (size - 1) / 2       the inputs
 *     TorchSparse Conv3d, hashmap   CONVOLUTION    (size - 1) / 2       (5)
 *     TorchSparse Conv3d, on the    CONVOLUTION    p                    downsampled (6)
 *       fly (its default), strided
 *     TorchSparse transposed        create_inverse of the layer that went down
 *     TorchSparse generative        TRANSPOSED     size / 2             upsampled (7)
 *     WarpConvNet SparseConv        CONVOLUTION    d (size - 1) / 2,    floor(in / s) (3)
 *                                                  where size is even 0
 *     WarpConvNet transposed, generative
 *                                   TRANSPOSED     the same             upsampled (4)
 *     FlexGEMM submanifold          SUBMANIFOLD    the centre           the inputs
 *     FlexGEMM sparse_conv3d        CONVOLUTION    p                    downsampled (1)
 *     fVDB SparseConv3d             CONVOLUTION    (size - 1) / 2       downsampled
 *     fVDB SparseConvTranspose3d    TRANSPOSED     (size - 1) / 2       upsampled (4)
 *     nn.Conv3d                     CONVOLUTION    p                    all from 0 to (n + 2 p -
 *                                                                       d (size - 1) - 1) / s
 *     nn.ConvTranspose3d            TRANSPOSED     p                    all of its dense output
 *     pointelligence, point convolutions: spops_neighbors with the same size of a tap; odd cubes
 *
 *  1  spops_coords_create_downsampled in the box from 0 to (n + 2 p - d (size - 1) - 1) / s.
 *  2  spops_coords_create_upsampled in the box from 0 to (n - 1) s - 2 p + size - 1 + what the
 *     layer adds as output padding.
 *  3  The inputs where s is 1; else create_downsampled by a kernel of size s, stride s, padding 0.
 *  4  spops_coords_create_upsampled; a layer that is not generative takes the set that the network
 *     had at that stride, where it had one.
 *  5  As (3) where each axis has s = 1 or s = size, or in the mode "minkowski"; else as (6).
 *  6  create_downsampled by the layer's own p, in the box from 0 to the layer's spatial range, or
 *     without one to (largest input + 2 p - (size - 1)) / s.
 *  7  create_upsampled with padding (size - 1) / 2 in the box of the spatial range. For an even
 *     size the set reaches up where the taps reach down, so some outputs have no pairs.
 *
 * TorchSparse's maps know no dilation. fVDB before 0.4 also takes strides in reverse order of axes.
 */
#ifndef SPOPS_WEIGHTS_H
#define SPOPS_WEIGHTS_H

#include "spops/coords.h"

SPOPS_EXTERN_C_BEGIN

/**
 * Layouts, slowest index first. k_0 .. k_{d-1} are the kernel's axes in the order of the
 * coordinates' columns, as the network that the weights come from had them; G is the number of
 * groups, in and out are the channels of one group. A layout without G is that of layers which have
 * one group alone.
 *
 * Source    The layout of each library's parameter tensor when it is contiguous: torch.nn.Conv3d
 *           and ConvTranspose3d; spconv, docs/SPCONV_2_BREAKING_CHANGEs.md; MinkowskiEngine,
 *           src/kernel_region.hpp; TorchSparse, nn/utils/kernel.py and kmap/func/hashmap.py;
 *           WarpConvNet, nn/modules/sparse_conv.py; FlexGEMM, ops/spconv; fVDB, nn/modules.py;
 *           pointelligence, layers/conv.py.
 */
typedef enum spops_weights_layout {
    SPOPS_WEIGHTS_CANONICAL = 0, /* [taps][in][G][out], last axis fastest: what spops takes */
    SPOPS_WEIGHTS_TORCH = 1,     /* [G][out][in][k_0]..[k_{d-1}]: nn.Conv1d to Conv3d */
    SPOPS_WEIGHTS_TORCH_TRANSPOSED = 2, /* [G][in][out][k_0]..[k_{d-1}]: nn.ConvTranspose1d to 3d */
    SPOPS_WEIGHTS_SPCONV1 = 3,          /* [k_0]..[k_{d-1}][in][out]: spconv 1 (RSCK) */
    SPOPS_WEIGHTS_SPCONV2 = 4,     /* [out][k_0]..[k_{d-1}][in]: spconv 2 (KRSC); the numbers of
                                           a kernel of one tap are [in][out], because conv.py
                                           multiplies by weight.view(in, out) (its issue 450); with
                                           a stride beside 1 they are those of TORCH */
    SPOPS_WEIGHTS_MINKOWSKI = 5,   /* [taps][in][out], axis 0 fastest; channelwise layers
                                           (G = C_in = C_out): [taps][G] */
    SPOPS_WEIGHTS_TORCHSPARSE = 6, /* [taps][in][out]; axis 0 fastest where the number of taps
                                           is odd, the last axis where it is even. Layers that go
                                           down, and transposed ones that share their map */
    SPOPS_WEIGHTS_WARPCONVNET = 7, /* [taps][G][in][out], last axis fastest */
    SPOPS_WEIGHTS_FLEXGEMM = 8,    /* [out][k_0]..[k_{d-1}][in] */
    SPOPS_WEIGHTS_FVDB = 9,        /* [out][in][k_0]..[k_{d-1}], from 0.4 on; its tensor is not
                                           contiguous in memory: save it with .contiguous() */
    SPOPS_WEIGHTS_TORCHSPARSE_GENERATIVE = 10, /* as TORCHSPARSE, tap t of an axis in the place of
                                                  size - 1 - t: transposed=True, generative=True */
    SPOPS_WEIGHTS_FVDB_0_3 = 11,               /* [out][in][k_{d-1}]..[k_0]: fVDB before 0.4 */
    SPOPS_WEIGHTS_FVDB_0_3_TRANSPOSED = 12,    /* [in][out][k_{d-1}]..[k_0]: its transposed plans */
    SPOPS_WEIGHTS_POINTELLIGENCE = 13,         /* [taps][G][in][out], last axis fastest; files from
                                               before have TORCH_TRANSPOSED */
    SPOPS_WEIGHTS_SPCONV2_NATIVE = 14,         /* [k_0]..[k_{d-1}][out][in]: native layers of spconv
                                               2.0 and 2.1 (RSKC) */
    SPOPS_WEIGHTS_MINKOWSKI_CROSS = 15 /* hypercross kernels, which have taps on the axes alone:
                                               refused */
} spops_weights_layout;

/**
 * Bring weights of another library into the canonical layout.
 *
 * layout        What `from` has. CANONICAL copies.
 * kernel        Its sizes; the other fields are not looked at.
 * groups        Of the layer; 0 or 1: one. More are refused where layers of that library have none.
 * in_channels   C_in of the layer, a multiple of groups, 1 or more.
 * out_channels  C_out of the layer, likewise.
 * dtype         Any whose elements are whole bytes.
 * from          [taps * C_in / groups * C_out] elements in `layout`.
 * to            As many, canonical. Must not overlap from.
 *
 * Memory    Host memory on every backend: weights are loaded once.
 * Errors    INVALID_ARGUMENT, NOT_SUPPORTED (MINKOWSKI_CROSS); to is then untouched.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_weights_load(spops_context *ctx, spops_weights_layout layout,
                                          const spops_kernel_shape *kernel, int32_t groups,
                                          int64_t in_channels, int64_t out_channels,
                                          spops_dtype dtype, const void *from, void *to);

/** The way back: `from` is canonical, `to` gets `layout`. The rest as spops_weights_load. */
SPOPS_API spops_status spops_weights_save(spops_context *ctx, spops_weights_layout layout,
                                          const spops_kernel_shape *kernel, int32_t groups,
                                          int64_t in_channels, int64_t out_channels,
                                          spops_dtype dtype, const void *from, void *to);

/** Lower-case name such as "spconv2"; "?" for a value that is no layout. */
SPOPS_API const char *spops_weights_layout_name(spops_weights_layout layout);

SPOPS_EXTERN_C_END

#endif
