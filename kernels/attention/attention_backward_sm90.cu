// SPDX-License-Identifier: Apache-2.0
// Gradients of attention by wgmma.
#include "kernels/attention/attention_backward_launch.cuh"
#include "kernels/attention/attention_backward_sm90.cuh"

namespace
{

using namespace spops;

template <class P, class T, attention_side SIDE>
spops_status launch_side(spops_context *ctx, const attention_backward_params &p, int64_t max_tiles)
{
    const int64_t items = max_tiles * p.heads, processors = ctx->info.num_processors;
    return launch_preparing<AFTER_PREVIOUS>(
        ctx, "attention_execute_backward: launch", attention_backward_sm90_kernel<P, T, SIDE>,
        dim3((unsigned)(items < processors ? items : processors)), (unsigned)P::threads,
        (size_t)P::shared_bytes, p);
}

template <int DIM, int STREAMED, bool OWN_REGISTERS, bool OVERLAP, bool TOUCH = false>
using policy = attention_backward_sm90_policy<DIM, STREAMED, 4, OWN_REGISTERS, OVERLAP, TOUCH>;

// Of both sides.
template <class KEYS_, class QUERIES_> struct policies {
    typedef KEYS_ KEYS;
    typedef QUERIES_ QUERIES;
};

// f(policies of a head dim).
template <class F> spops_status with_policies(int dim, F f)
{
    // Columns, streamed rows of a stage, own rows in registers, overlap, touch: of keys, of queries.
    // H200, bf16, 122,880 rows, patches of 1,024, ms: 64 columns, keys, own rows in shared memory
    // 1.29, in registers 1.10; queries, stages of 64 rows 0.91, of 128 rows 0.79. 128 columns,
    // queries, shared memory 0.88, registers 0.75; keys do not fit.
    if (dim <= 16) return f(policies<policy<16, 64, true, true>, policy<16, 128, true, false>>());
    if (dim <= 32) return f(policies<policy<32, 64, true, true>, policy<32, 128, true, false>>());
    if (dim <= 64)
        return f(policies<policy<64, 64, true, true, true>, policy<64, 128, true, false>>());
    return f(policies<policy<128, 64, false, false>, policy<128, 64, true, false>>());
}

} // namespace

template <class T>
spops_status spops::launch_attention_backward_sm90(spops_context *ctx,
                                                   const attention_backward_params &p,
                                                   attention_side side, int64_t max_tiles)
{
    return with_policies(p.dim, [&](auto both) {
        typedef decltype(both) B;
        return side == OWN_KEYS
                   ? launch_side<typename B::KEYS, T, OWN_KEYS>(ctx, p, max_tiles)
                   : launch_side<typename B::QUERIES, T, OWN_QUERIES>(ctx, p, max_tiles);
    });
}

template <class T> spops_status spops::prepare_attention_backward_sm90(spops_context *ctx, int dim)
{
    return with_policies(dim, [&](auto both) {
        typedef decltype(both) B;
        SPOPS_TRY(prepare_shared(ctx, "attention_execute_backward: prepare",
                                 attention_backward_sm90_kernel<typename B::KEYS, T, OWN_KEYS>));
        return prepare_shared(ctx, "attention_execute_backward: prepare",
                              attention_backward_sm90_kernel<typename B::QUERIES, T, OWN_QUERIES>);
    });
}

template spops_status spops::launch_attention_backward_sm90<spops::f16>(
    spops_context *, const attention_backward_params &, attention_side, int64_t);
template spops_status spops::launch_attention_backward_sm90<spops::bf16>(
    spops_context *, const attention_backward_params &, attention_side, int64_t);
template spops_status spops::prepare_attention_backward_sm90<spops::f16>(spops_context *, int);
template spops_status spops::prepare_attention_backward_sm90<spops::bf16>(spops_context *, int);
