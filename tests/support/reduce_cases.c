#include "tests/support/reduce_cases.h"

const spops_reduce test_reduces[] = {
#define SPOPS_REDUCE_OP(name, plain, traced) SPOPS_REDUCE_##name,
#include "src/core/reduce_ops.def"
#undef SPOPS_REDUCE_OP
};
const spops_dtype test_row_dtypes[] = {SPOPS_DTYPE_F32, SPOPS_DTYPE_F16, SPOPS_DTYPE_BF16};
static const int64_t all_cols[] = {1, 3, 4, 5, 31, 32, 33, 80, 160, 256};
enum {
    NUM_REDUCES = sizeof test_reduces / sizeof *test_reduces,
    NUM_COLS = sizeof all_cols / sizeof *all_cols,
    NUM_SMALL_COLS = 5
};
const int test_num_reduces = NUM_REDUCES;

struct criterion_test_params every_reduction(void)
{
    static struct reduce_param params[NUM_REDUCES * NUM_ROW_DTYPES * (1 + NUM_LAUNCHES)];
    size_t n = 0;
    for (int r = 0; r < NUM_REDUCES; ++r) {
        for (int t = 0; t < NUM_ROW_DTYPES; ++t) {
            params[n++] = (struct reduce_param){SPOPS_BACKEND_CPU, (int)test_reduces[r],
                                                (int)test_row_dtypes[t], LAUNCH_DEFAULT};
            for (int l = 0; l < NUM_LAUNCHES; ++l)
                params[n++] = (struct reduce_param){SPOPS_BACKEND_CUDA, (int)test_reduces[r],
                                                    (int)test_row_dtypes[t], l};
        }
    }
    return cr_make_param_array(struct reduce_param, params, n);
}

// Streams of random numbers of a parameter's cases, apart from those of other parameters.
static uint64_t first_stream(const struct reduce_param *p)
{
    return (uint64_t)(p->reduce * 64 + p->dtype * 8 + p->launch);
}

void reduce_over_shapes(const struct reduce_param *p, reduce_check *check)
{
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = first_stream(p) << 32;
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
            test_relation relation = test_relation_create(shape, form, indexing, &rng);
            check(&d, shape, &relation, p, &choices, &rng);
            test_relation_destroy(&relation);
        }
    }
    test_close(&d);
}

void reduce_over_options(const struct reduce_param *p, reduce_check *check)
{
    static const test_shape shape = {"small ramp", 23, LENGTHS_RAMP, 21, 256};
    test_device d;
    if (!test_open(&d, (spops_backend_kind)p->backend, (test_launch)p->launch)) return;
    uint64_t stream = first_stream(p) << 40;
    int number = 0, num_run = 0;
    for (int form = 0; form < NUM_FORMS; ++form) {
        for (int indexing = 0; indexing < NUM_INDEXINGS; ++indexing) {
            test_rng rng = test_rng_make(++stream);
            test_relation relation =
                test_relation_create(&shape, (test_form)form, (test_indexing)indexing, &rng);
            for (int weights = 0; weights < NUM_WEIGHTINGS; ++weights) {
                for (int placed = 0; placed < 4; ++placed, ++number) {
                    if (test_quick() && number % 5 != 0) continue;
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
