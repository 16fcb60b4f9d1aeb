/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of convolutions: the layout that this library takes, and those of other libraries.
 *
 * Every convolution here takes weights as [taps][C_in][C_out], taps numbered as in
 * spops_kernel_shape (last axis fastest). Weights of another library hold the same numbers in
 * another order; loaded as they are they raise no error and give wrong results, so convert them.
 */
#ifndef SPOPS_WEIGHTS_H
#define SPOPS_WEIGHTS_H

#include "spops/coords.h"

SPOPS_EXTERN_C_BEGIN

/**
 * Layouts, slowest index first. k_0 .. k_{d-1} are the kernel's axes in the order of the
 * coordinates' columns, as the network that the weights come from had them; in and out are
 * channels. With groups, in counts the channels of one group.
 *
 * Source    The layout of each library's parameter tensor when it is contiguous: torch.nn.Conv3d
 *           and ConvTranspose3d; spconv, docs/SPCONV_2_BREAKING_CHANGEs.md; MinkowskiEngine,
 *           src/kernel_region.hpp; TorchSparse, nn/utils/kernel.py; WarpConvNet,
 *           kernel_offsets_from_size; FlexGEMM, ops/spconv; fVDB, nn/modules.py.
 */
typedef enum spops_weights_layout {
    SPOPS_WEIGHTS_CANONICAL = 0,        /* [taps][in][out], last axis fastest: what spops takes */
    SPOPS_WEIGHTS_TORCH = 1,            /* [out][in][k_0]..[k_{d-1}]: nn.Conv1d to Conv3d */
    SPOPS_WEIGHTS_TORCH_TRANSPOSED = 2, /* [in][out][k_0]..[k_{d-1}]: nn.ConvTranspose3d */
    SPOPS_WEIGHTS_SPCONV1 = 3,          /* [k_0]..[k_{d-1}][in][out]: spconv 1 (RSCK) */
    SPOPS_WEIGHTS_SPCONV2 = 4,          /* [out][k_0]..[k_{d-1}][in]: spconv 2 (KRSC) */
    SPOPS_WEIGHTS_MINKOWSKI = 5,        /* [taps][in][out], axis 0 fastest */
    SPOPS_WEIGHTS_TORCHSPARSE = 6,      /* [taps][in][out]; axis 0 fastest where the number of taps
                                           is odd, the last axis where it is even */
    SPOPS_WEIGHTS_WARPCONVNET = 7,      /* [taps][in][out], last axis fastest */
    SPOPS_WEIGHTS_FLEXGEMM = 8,         /* [out][k_0]..[k_{d-1}][in] */
    SPOPS_WEIGHTS_FVDB = 9              /* [out][in][k_0]..[k_{d-1}]; its tensor is not contiguous
                                           in memory: save it with .contiguous() */
} spops_weights_layout;

/**
 * Bring weights of another library into the canonical layout.
 *
 * layout        What `from` has. CANONICAL copies.
 * kernel        Its sizes; the other fields are not looked at.
 * in_channels   1 or more, of one group.
 * out_channels  1 or more, of all groups.
 * dtype         Any whose elements are whole bytes.
 * from          [taps * in_channels * out_channels] elements in `layout`.
 * to            As many, canonical. Must not overlap from.
 *
 * Memory    Host memory on every backend: weights are loaded once.
 * Errors    INVALID_ARGUMENT; to is then untouched.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_weights_load(spops_context *ctx, spops_weights_layout layout,
                                          const spops_kernel_shape *kernel, int64_t in_channels,
                                          int64_t out_channels, spops_dtype dtype, const void *from,
                                          void *to);

/** The way back: `from` is canonical, `to` gets `layout`. The rest as spops_weights_load. */
SPOPS_API spops_status spops_weights_save(spops_context *ctx, spops_weights_layout layout,
                                          const spops_kernel_shape *kernel, int64_t in_channels,
                                          int64_t out_channels, spops_dtype dtype, const void *from,
                                          void *to);

/** Lower-case name such as "spconv2"; "?" for a value that is no layout. */
SPOPS_API const char *spops_weights_layout_name(spops_weights_layout layout);

SPOPS_EXTERN_C_END

#endif
