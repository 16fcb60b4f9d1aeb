// SPDX-License-Identifier: Apache-2.0
// Where pieces of 16 bytes lie in lines of shared memory, so that eight neighbouring lines have the same
// piece in different banks. Matrix units and box copies of sm_90 have the same places for lines of up to
// 128 bytes.
#ifndef SPOPS_KERNELS_CORE_SWIZZLE_CUH
#define SPOPS_KERNELS_CORE_SWIZZLE_CUH

namespace spops
{

// Bytes from line 0. LINE: bytes of a line, a power of two from 32 on.
template <int LINE = 128>
__host__ __device__ __forceinline__ constexpr unsigned swizzled(unsigned line, unsigned piece)
{
    const unsigned turn = LINE >= 128 ? line % 8 : line * LINE / 128 % (LINE / 16);
    return line * LINE + (piece ^ turn) * 16;
}

} // namespace spops

#endif
