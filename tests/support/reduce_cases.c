// SPDX-License-Identifier: Apache-2.0
#include "tests/support/reduce_cases.h"

#include <string.h>

#include "spops/device/reduce_ops.h"

const spops_reduce test_reduces[] = {
#define SPOPS_REDUCE_OP(name, plain, traced) SPOPS_REDUCE_##name,
#include "src/segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
};
static const struct {
    bool has_arg, has_grad, is_linear;
} properties[] = {
#define SPOPS_REDUCE_OP(name, plain, traced)                                                       \
    [SPOPS_REDUCE_##                                                                               \
        name] = {spops_##traced##_has_arg, spops_##traced##_has_grad, spops_##traced##_is_linear},
#include "src/segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
};
static const int64_t all_cols[] = {1, 3, 4, 5, 31, 32, 33, 80, 160, 256};
enum {
    NUM_REDUCES = sizeof test_reduces / sizeof *test_reduces,
    NUM_COLS = sizeof all_cols / sizeof *all_cols,
    NUM_SMALL_COLS = 5
};
const int test_num_reduces = NUM_REDUCES;

static struct criterion_test_params reductions(bool with_gradient)
{
    int reduces[NUM_REDUCES], num_reduces = 0;
    for (int r = 0; r < NUM_REDUCES; ++r)
        if (properties[test_reduces[r]].has_grad || !with_gradient)
            reduces[num_reduces++] = (int)test_reduces[r];
    return every_case(test_row_dtypes, NUM_REAL_DTYPES, reduces, num_reduces);
}

struct criterion_test_params every_reduction(void)
{
    return reductions(false);
}

struct criterion_test_params every_reduction_with_gradient(void)
{
    return reductions(true);
}

bool test_reduce_has_arg(spops_reduce reduce)
{
    return properties[reduce].has_arg;
}

bool test_reduce_is_linear(spops_reduce reduce)
{
    return properties[reduce].is_linear;
}

// Streams of their own and captured graphs share the choices: one takes the even ones, one the odd.
static bool is_left_out(const struct case_param *p, int number)
{
    return p->launch != LAUNCH_DEFAULT && number % 2 == (p->launch == LAUNCH_CAPTURED);
}

void reduce_over_shapes(const struct case_param *p, reduce_check *check)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = case_number(p) << 32;
    int num_run = 0;
    for (int s = 0; s < test_num_shapes(); ++s) {
        for (int k = 0; k < NUM_COLS; ++k) {
            const test_shape *shape = &test_shapes[s];
            test_rng rng = test_rng_make(++stream);
            const test_form form = (test_form)test_rng_below(&rng, NUM_FORMS);
            const test_indexing indexing = (test_indexing)test_rng_below(&rng, NUM_INDEXINGS);
            reduce_choices choices = {.cols = all_cols[k], .stream = stream};
            choices.padding = test_rng_below(&rng, 2) * (1 + test_rng_below(&rng, 7));
            choices.shift = test_rng_below(&rng, 2);
            choices.max_cols = test_rng_below(&rng, 2) * choices.cols;
            choices.weights = (test_weighting)test_rng_below(&rng, NUM_WEIGHTINGS);
            if (choices.cols > shape->max_cols) continue;
            choices.number = num_run++;
            if (is_left_out(p, choices.number)) continue;
            test_relation relation = test_relation_create(shape, form, indexing, &rng);
            check(&d, shape, &relation, p, &choices, &rng);
            test_relation_destroy(&relation);
        }
    }
    test_close(&d);
}

void reduce_over_options(const struct case_param *p, reduce_check *check)
{
    static const test_shape shape = {"small ramp", 23, LENGTHS_RAMP, 21, 256};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = case_number(p) << 40;
    int number = 0, num_run = 0;
    for (int form = 0; form < NUM_FORMS; ++form) {
        for (int indexing = 0; indexing < NUM_INDEXINGS; ++indexing) {
            test_rng rng = test_rng_make(++stream);
            test_relation relation =
                test_relation_create(&shape, (test_form)form, (test_indexing)indexing, &rng);
            for (int weights = 0; weights < NUM_WEIGHTINGS; ++weights) {
                for (int placed = 0; placed < 4; ++placed, ++number) {
                    if ((test_quick() && number % 5 != 0) || is_left_out(p, number)) continue;
                    const reduce_choices choices = {.cols = all_cols[number % NUM_SMALL_COLS],
                                                    .padding = placed & 1 ? 3 : 0,
                                                    .shift = placed >> 1,
                                                    .weights = (test_weighting)weights,
                                                    .number = num_run++,
                                                    .stream = ++stream};
                    check(&d, &shape, &relation, p, &choices, &rng);
                }
            }
            test_relation_destroy(&relation);
        }
    }
    test_close(&d);
}

// ---- A registered sum ---------------------------------------------------------------------------

static void identity(void *user, int64_t n, void *state)
{
    (void)user;
    memset(state, 0, (size_t)n * sizeof(float));
}

static void fold(void *user, int64_t n, void *state, const float *v, int32_t term)
{
    (void)user, (void)term;
    for (int64_t i = 0; i < n; ++i)
        ((float *)state)[i] += v[i];
}

static void combine(void *user, int64_t n, void *a, const void *b)
{
    (void)user;
    for (int64_t i = 0; i < n; ++i)
        ((float *)a)[i] += ((const float *)b)[i];
}

static void finalize(void *user, int64_t n, const void *state, int64_t count, float *out)
{
    (void)user, (void)count;
    memcpy(out, state, (size_t)n * sizeof(float));
}

spops_reduce_desc test_plain_sum(void)
{
    spops_reduce_desc desc = spops_reduce_desc_default();
    desc.name = "plain sum";
    desc.state_bytes = sizeof(float);
    desc.identity = identity, desc.fold = fold, desc.combine = combine, desc.finalize = finalize;
    desc.cuda_op = "plain_sum";
    desc.cuda_source =
        "struct plain_sum {\n"
        "    struct state { float v; };\n"
        "    static constexpr bool uses_term = false;\n"
        "    static constexpr bool has_arg = false;\n"
        "    static __device__ state identity() { state a = {0.0f}; return a; }\n"
        "    static __device__ state lift(float v, int) { state a = {v}; return a; }\n"
        "    static __device__ state combine(state a, state b) { a.v += b.v; return a; }\n"
        "    static __device__ float finalize(state a, long long) { return a.v; }\n"
        "    static __device__ int arg(state) { return -1; }\n"
        "    static __device__ float grad(float, int, state, long long) { return 1.0f; }\n"
        "};\n";
    return desc;
}
