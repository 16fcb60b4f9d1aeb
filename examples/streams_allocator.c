// SPDX-License-Identifier: Apache-2.0
/*
 * An engine's own memory and its own stream: the context takes both. This allocator counts; a real
 * one hands out pieces of the engine's pool. With CUDA, device_alloc and device_free serve device
 * memory, in the order of the stream that they are given.
 */
#define _POSIX_C_SOURCE 200112L
#include <stdlib.h>

#include "try.h"

struct counts {
    size_t allocations, live;
};

static void *take(void *user, size_t bytes)
{
    struct counts *c = user;
    void *memory = NULL;
    if (posix_memalign(&memory, 256, bytes > 0 ? bytes : 1) != 0) return NULL;
    ++c->allocations;
    c->live += bytes;
    return memory;
}

static void give_back(void *user, void *memory, size_t bytes)
{
    ((struct counts *)user)->live -= bytes;
    free(memory);
}

int main(void)
{
    enum { ROWS = 1000 };
    static float x[ROWS], sums[10];
    static int32_t keys[ROWS];
    struct counts counts = {0, 0};
    spops_context_options options = spops_context_options_default();
    spops_context *ctx = NULL;
    spops_segments *plan = NULL;

    for (int i = 0; i < ROWS; ++i)
        x[i] = 1.0f, keys[i] = i % 10;
    options.backend = SPOPS_BACKEND_CPU;
    options.stream = NULL; /* CUDA: your cudaStream_t, on which every call is enqueued */
    options.allocator.user = &counts;
    options.allocator.host_alloc = take;
    options.allocator.host_free = give_back;
    TRY(spops_context_create(&options, &ctx));
    TRY(spops_segments_create_from_keys(ctx, 10, ROWS, keys, SPOPS_KEYS_UNSORTED, NULL, &plan));
    const size_t planned = counts.allocations;
    for (int frame = 0; frame < 100; ++frame)
        TRY(spops_segreduce_execute(ctx, plan, SPOPS_REDUCE_SUM,
                                    spops_matrix_dense(x, ROWS, 1, SPOPS_DTYPE_F32), NULL,
                                    spops_matrix_dense(sums, 10, 1, SPOPS_DTYPE_F32), NULL));
    printf("sum %g; %zu allocations while running\n", sums[9], counts.allocations - planned);
    spops_segments_destroy(plan);
    spops_context_destroy(ctx);
    printf("%s\n", planned > 0 && counts.live == 0 ? "all memory came back" : "memory is lost");
    return 0;
}
