// SPDX-License-Identifier: Apache-2.0
// Fuzzes the loading of saved kernel maps, as the bytes are and with the checksum made right. The
// first byte says between which sets.
#include "core/plan_file.h"
#include "fuzz_map_sets.h"
#include "tests/support/saved.h"

// What was accepted holds only what its sets can have, and saves as bytes that load again.
static void check_map(spops_context *ctx, const fuzz_map_sets *sets, int which,
                      const spops_kernel_map *map)
{
    const spops_coords *in = fuzz_map_in(sets, which), *out = fuzz_map_out(sets, which);
    spops_kernel_map_view v = spops_kernel_map_view_default();
    spops_kernel_map_info info = spops_kernel_map_info_default();
    spops_kernel_map *again = NULL;
    size_t bytes = 0;
    int64_t pairs = 0;
    FUZZ_REQUIRE(spops_kernel_map_get_info_sync(ctx, map, &info) == SPOPS_STATUS_OK, "info");
    FUZZ_REQUIRE(spops_kernel_map_get_view(ctx, map, &v) == SPOPS_STATUS_OK, "view");
    for (int64_t i = 0; i < info.num_out; ++i)
        for (int32_t k = 0; k < v.num_taps; ++k) {
            const int32_t j = v.out->table[i * v.table_stride + k];
            const uint32_t bit = v.out->masks[i * v.mask_words + k / 32] >> (k % 32) & 1;
            FUZZ_REQUIRE(j >= -1 && j < info.num_in && (j >= 0) == (bit != 0), "table");
            pairs += j >= 0;
        }
    FUZZ_REQUIRE(pairs == info.num_pairs, "pairs");
    for (int64_t i = 0; v.in_rows != NULL && i < pairs; ++i)
        FUZZ_REQUIRE(v.in_rows[i] >= 0 && v.in_rows[i] < info.num_in && v.out_rows[i] >= 0 &&
                         v.out_rows[i] < info.num_out,
                     "pair %lld", (long long)i);
    if (v.in->offsets != NULL) FUZZ_REQUIRE(v.in->offsets[info.num_in] == pairs, "reverse lists");
    FUZZ_REQUIRE(saved_put_map(ctx, map, in, out, NULL, 0, &bytes) == SPOPS_STATUS_OK, "save");
    void *buffer = malloc(bytes);
    FUZZ_REQUIRE(buffer != NULL, "no memory");
    FUZZ_REQUIRE(saved_put_map(ctx, map, in, out, buffer, bytes, &bytes) == SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    FUZZ_REQUIRE(saved_get_map(ctx, in, out, buffer, bytes, &again) == SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    spops_kernel_map_destroy(again);
    free(buffer);
}

// The sets are made once, and the context that they are of serves every input.
static struct {
    fuzz_memory memory;
    spops_context *ctx;
    fuzz_map_sets sets;
} kept;

static void give_back(void)
{
    fuzz_map_sets_destroy(&kept.sets);
    fuzz_context_destroy(kept.ctx, &kept.memory);
}

static void load(int which, const uint8_t *data, size_t bytes)
{
    spops_kernel_map *map = NULL;
    if (kept.ctx == NULL) {
        kept.ctx = fuzz_context_create(&kept.memory, 1);
        kept.sets = fuzz_map_sets_create(kept.ctx);
        FUZZ_REQUIRE(atexit(give_back) == 0, "no room to say what is to be freed");
    }
    const int64_t live = kept.memory.num_live;
    const spops_status status = saved_get_map(kept.ctx, fuzz_map_in(&kept.sets, which),
                                              fuzz_map_out(&kept.sets, which), data, bytes, &map);
    FUZZ_REQUIRE((status == SPOPS_STATUS_OK) == (map != NULL), "%s", spops_status_name(status));
    FUZZ_REQUIRE(status == SPOPS_STATUS_OK || status == SPOPS_STATUS_CORRUPT_DATA, "%s: %s",
                 spops_status_name(status), spops_last_error(kept.ctx));
    if (map != NULL) check_map(kept.ctx, &kept.sets, which, map);
    spops_kernel_map_destroy(map);
    FUZZ_REQUIRE(kept.memory.num_live == live, "%lld blocks more than before",
                 (long long)(kept.memory.num_live - live));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const int which = bytes > 0 ? data[0] % FUZZ_MAP_SETS : 0;
    const size_t n = bytes > 0 ? bytes - 1 : 0;
    // A copy of exactly this size, so that reading past it is seen.
    uint8_t *copy = malloc(n > 0 ? n : 1);
    FUZZ_REQUIRE(copy != NULL, "no memory for %zu bytes", n);
    memset(copy, 0, n > 0 ? n : 1);
    if (n > 0) memcpy(copy, data + 1, n);
    load(which, copy, n);
    if (n >= SPOPS_FILE_CHECKSUM_BYTES) {
        const size_t content = n - SPOPS_FILE_CHECKSUM_BYTES;
        const uint64_t checksum = spops_file_checksum(copy, content);
        for (int i = 0; i < SPOPS_FILE_CHECKSUM_BYTES; ++i)
            copy[content + (size_t)i] = (uint8_t)(checksum >> (8 * i));
        load(which, copy, n);
    }
    free(copy);
    return 0;
}
