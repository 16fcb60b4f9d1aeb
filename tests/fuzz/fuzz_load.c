// SPDX-License-Identifier: Apache-2.0
// Fuzzes the loading of saved plans, as the bytes are and with the checksum made right, since
// random bytes would hardly ever get past it.
#include "core/plan_file.h"
#include "fuzz.h"
#include "tests/support/saved.h"

static void check_status(spops_context *ctx, spops_status status, const void *plan)
{
    FUZZ_REQUIRE((status == SPOPS_STATUS_OK) == (plan != NULL), "%s", spops_status_name(status));
    FUZZ_REQUIRE(status == SPOPS_STATUS_OK || status == SPOPS_STATUS_CORRUPT_DATA ||
                     status == SPOPS_STATUS_OUT_OF_MEMORY,
                 "%s: %s", spops_status_name(status), spops_last_error(ctx));
}

// Whatever bytes say, loading them takes at most so many times their number; and some pages, as every
// block counts as 256 bytes at least.
static void check_cost(const fuzz_memory *memory, size_t before, size_t bytes)
{
    FUZZ_REQUIRE(memory->most <= before + 8192 + 2048 * bytes, "%zu bytes asked for %zu",
                 memory->most - before, bytes);
}

static void load(const uint8_t *data, size_t bytes)
{
    fuzz_memory memory;
    spops_context *ctx = fuzz_context_create(&memory, 1);
    spops_segments *segments = NULL;
    spops_bev_plan *plan = NULL;
    size_t before = memory.used;
    spops_status status = saved_get(ctx, SPOPS_PLAN_SEGMENTS, data, bytes, &segments);
    check_status(ctx, status, segments);
    check_cost(&memory, before, bytes);
    if (segments != NULL) fuzz_run_segments(ctx, segments);
    spops_segments_destroy(segments);
    before = memory.most = memory.used;
    status = saved_get(ctx, SPOPS_PLAN_BEV_PLAN, data, bytes, &plan);
    check_status(ctx, status, plan);
    check_cost(&memory, before, bytes);
    if (plan != NULL) fuzz_run_bev_plan(ctx, plan);
    spops_bev_plan_destroy(plan);
    spops_partition *partition = NULL;
    before = memory.most = memory.used;
    status = saved_get(ctx, SPOPS_PLAN_PARTITION, data, bytes, &partition);
    check_status(ctx, status, partition);
    check_cost(&memory, before, bytes);
    if (partition != NULL) {
        static const int32_t rows[2][5] = {{0, 0, 0, 0, 0}, {1, INT32_MIN, INT32_MAX, -1, 7}};
        int32_t chunks[2];
        spops_coords_box box;
        FUZZ_REQUIRE(spops_partition_get_box(ctx, partition, NULL, &box) == SPOPS_STATUS_OK &&
                         spops_partition_find_chunks(ctx, partition, NULL, 2, rows[0], chunks) ==
                             SPOPS_STATUS_OK,
                     "%s", spops_last_error(ctx));
    }
    spops_partition_destroy(partition);
    fuzz_context_destroy(ctx, &memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    // A copy of exactly this size, so that reading past it is seen.
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
    FUZZ_REQUIRE(copy != NULL, "no memory for %zu bytes", bytes);
    memset(copy, 0, bytes > 0 ? bytes : 1);
    if (bytes > 0) memcpy(copy, data, bytes);
    load(copy, bytes);
    if (bytes >= SPOPS_FILE_CHECKSUM_BYTES) {
        const size_t content = bytes - SPOPS_FILE_CHECKSUM_BYTES;
        const uint64_t checksum = spops_file_checksum(copy, content);
        for (int i = 0; i < SPOPS_FILE_CHECKSUM_BYTES; ++i)
            copy[content + (size_t)i] = (uint8_t)(checksum >> (8 * i));
        load(copy, bytes);
    }
    free(copy);
    return 0;
}
