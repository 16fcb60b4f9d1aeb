// SPDX-License-Identifier: Apache-2.0
// ONNX files of any bytes: a model, or an error that names the place. What is a model is run on a few
// rows, some of which are wrong, and says what did not fit.
#include "fuzz.h"
#include "spops/model.h"

enum { ROWS = 24, RUN_BYTES = 1 << 22 };

// Rows of small numbers where the model's inputs are.
static void fill(spops_context *ctx, const spops_model *model, int32_t num_inputs, size_t bytes)
{
    for (int32_t i = 0; i < num_inputs; ++i) {
        spops_model_array a = spops_model_array_default();
        FUZZ_REQUIRE(spops_model_get_input(ctx, model, i, &a) == SPOPS_STATUS_OK, "%s",
                     spops_last_error(ctx));
        FUZZ_REQUIRE(a.num_dims >= 0 && a.num_dims <= SPOPS_MODEL_MAX_DIMS, "%d axes", a.num_dims);
        if (a.set < 0) {
            if (a.num_dims == 1 && a.shape[0] == 1 && a.dtype == SPOPS_DTYPE_I32)
                *(int32_t *)a.data = (int32_t)(bytes % 40); // how many of something, perhaps
            continue;
        }
        const int32_t most = a.shape[0] < ROWS ? (int32_t)a.shape[0] : ROWS;
        *a.num_rows = (int32_t)(bytes % 3 == 0 ? (size_t)most : bytes % (size_t)(most + 2));
        for (int32_t r = 0; r < most; ++r)
            for (int32_t k = 1; k <= a.dims; ++k)
                a.coords[r * (1 + a.dims) + k] = (r >> (2 * (k - 1))) % 4;
    }
}

static void run(spops_context *ctx, spops_model *model, size_t bytes)
{
    spops_model_info info = spops_model_info_default();
    spops_status status;

    FUZZ_REQUIRE(spops_model_get_info(ctx, model, &info) == SPOPS_STATUS_OK, "%s",
                 spops_last_error(ctx));
    FUZZ_REQUIRE(info.num_outputs > 0 && info.peak_bytes >= info.weight_bytes + info.plan_bytes,
                 "%d outputs, peak of %zu bytes", info.num_outputs, info.peak_bytes);
    for (int32_t i = 0; i < info.num_layers; ++i) {
        spops_model_layer layer = spops_model_layer_default();
        FUZZ_REQUIRE(spops_model_get_layer(ctx, model, i, &layer) == SPOPS_STATUS_OK &&
                         layer.name != NULL && layer.op != NULL,
                     "%s", spops_last_error(ctx));
    }
    for (int32_t i = 0; i < info.num_outputs; ++i) {
        spops_model_array a = spops_model_array_default();
        FUZZ_REQUIRE(spops_model_get_output(ctx, model, i, &a) == SPOPS_STATUS_OK, "%s",
                     spops_last_error(ctx));
    }
    if (info.feature_bytes + info.output_bytes > RUN_BYTES) return;
    fill(ctx, model, info.num_inputs, bytes);
    status = spops_model_execute(ctx, model);
    FUZZ_REQUIRE(status == SPOPS_STATUS_OK, "%s: %s", spops_status_name(status),
                 spops_last_error(ctx));
    status = spops_model_check_sync(ctx, model);
    FUZZ_REQUIRE(status == SPOPS_STATUS_OK || status == SPOPS_STATUS_CAPACITY_EXCEEDED ||
                     status == SPOPS_STATUS_INVALID_ARGUMENT,
                 "%s: %s", spops_status_name(status), spops_last_error(ctx));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_memory memory;
    spops_model_options options = spops_model_options_default();
    spops_model *model = NULL;
    spops_context *ctx = fuzz_context_create(&memory, 1);
    // A copy of exactly this size, so that reading past it is seen.
    uint8_t *copy = malloc(bytes > 0 ? bytes : 1);
    FUZZ_REQUIRE(copy != NULL, "no memory for %zu bytes", bytes);
    if (bytes > 0) memcpy(copy, data, bytes);
    options.max_rows = options.max_inner_rows = 32;
    options.widen = (int32_t)(bytes % 2);
    const spops_status status = spops_model_load(ctx, copy, bytes, &options, &model);
    free(copy);
    FUZZ_REQUIRE((status == SPOPS_STATUS_OK) == (model != NULL), "status %d", (int)status);
    switch (status) {
    case SPOPS_STATUS_OK: run(ctx, model, bytes); break;
    case SPOPS_STATUS_CORRUPT_DATA:
    case SPOPS_STATUS_NOT_SUPPORTED:
    case SPOPS_STATUS_INVALID_ARGUMENT:
    case SPOPS_STATUS_OUT_OF_MEMORY:
        FUZZ_REQUIRE(strncmp(spops_last_error(ctx), "model_load: ", 12) == 0, "%s",
                     spops_last_error(ctx));
        break;
    default: FUZZ_REQUIRE(0, "%s: %s", spops_status_name(status), spops_last_error(ctx));
    }
    spops_model_destroy(model);
    fuzz_context_destroy(ctx, &memory);
    return 0;
}
