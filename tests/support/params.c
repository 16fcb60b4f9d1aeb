// SPDX-License-Identifier: Apache-2.0
#include "tests/support/params.h"

#include <criterion/alloc.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"

const spops_dtype test_row_dtypes[NUM_REAL_DTYPES] = {SPOPS_DTYPE_F32, SPOPS_DTYPE_F16,
                                                      SPOPS_DTYPE_BF16, SPOPS_DTYPE_F64};

// Whether cases on `backend` are to start at all. A device that is asked for has its cases, which
// fail where there is none.
static bool is_tested(spops_backend_kind backend)
{
    const char *only = getenv("SPOPS_TEST_BACKEND"), *required = getenv("SPOPS_REQUIRE_DEVICE");
    if (only != NULL && strcmp(only, test_backend_name(backend)) != 0) return false;
    if (backend == SPOPS_BACKEND_CPU) return true;
    return (required != NULL && strcmp(required, "1") == 0) || device_has_cuda();
}

static void free_params(struct criterion_test_params *params)
{
    cr_free(params->params);
}

struct criterion_test_params tested_here(struct criterion_test_params all)
{
    const bool tested[] = {is_tested(SPOPS_BACKEND_CPU), is_tested(SPOPS_BACKEND_CUDA)};
    char *kept = (char *)cr_calloc(all.length, all.size);
    size_t n = 0;
    for (size_t i = 0; i < all.length; ++i) {
        const char *param = (const char *)all.params + i * all.size;
        int backend;
        memcpy(&backend, param, sizeof backend);
        if (tested[backend == SPOPS_BACKEND_CUDA]) memcpy(kept + n++ * all.size, param, all.size);
    }
    if (all.cleanup != NULL) all.cleanup(&all);
    return (struct criterion_test_params){all.size, kept, n, free_params};
}

struct criterion_test_params every_backend(void)
{
    static struct backend_param params[] = {{SPOPS_BACKEND_CPU}, {SPOPS_BACKEND_CUDA}};
    return tested_here(cr_make_param_array(struct backend_param, params, 2));
}

struct criterion_test_params every_launch(void)
{
    static struct launch_param params[] = {{SPOPS_BACKEND_CPU, LAUNCH_DEFAULT},
                                           {SPOPS_BACKEND_CUDA, LAUNCH_STREAM},
                                           {SPOPS_BACKEND_CUDA, LAUNCH_CAPTURED}};
    return tested_here(cr_make_param_array(struct launch_param, params, 3));
}

struct criterion_test_params every_case(const spops_dtype *dtypes, int num_dtypes, const int *ops,
                                        int num_ops)
{
    static const spops_dtype f32[] = {SPOPS_DTYPE_F32};
    static const int no_op[] = {0};
    if (num_dtypes == 0) dtypes = f32, num_dtypes = 1;
    if (num_ops == 0) ops = no_op, num_ops = 1;
    const size_t most = (size_t)num_dtypes * (size_t)num_ops * (1 + NUM_LAUNCHES);
    struct case_param *params = (struct case_param *)cr_calloc(most, sizeof *params);
    size_t n = 0;
    for (int o = 0; o < num_ops; ++o) {
        for (int t = 0; t < num_dtypes; ++t) {
            const int dtype = (int)dtypes[t];
            params[n++] = (struct case_param){SPOPS_BACKEND_CPU, LAUNCH_DEFAULT, dtype, ops[o]};
            for (int l = 0; l < NUM_LAUNCHES && dtypes[t] != SPOPS_DTYPE_F64; ++l)
                params[n++] = (struct case_param){SPOPS_BACKEND_CUDA, l, dtype, ops[o]};
        }
    }
    return tested_here(cr_make_param_array(struct case_param, params, n, free_params));
}

uint64_t case_number(const struct case_param *p)
{
    const int dtype = p->dtype == SPOPS_DTYPE_F64 ? 7 : p->dtype; // of 8 that are rows
    return (uint64_t)(p->op * 64 + dtype * 8 + p->launch);
}
