// SPDX-License-Identifier: Apache-2.0
/*
 * An embedding bag: every bag is the weighted sum of some rows of a table. That is a segmented
 * reduction whose terms name their rows, and training it needs the gradient of the table.
 */
#include "try.h"

enum { ROWS = 5, COLS = 2, BAGS = 3, TERMS = 6 };

int main(void)
{
    float table[ROWS][COLS] = {{1, 10}, {2, 20}, {3, 30}, {4, 40}, {5, 50}};
    const int32_t word[TERMS] = {4, 0, 0, 2, 1, 3}, offsets[BAGS + 1] = {0, 3, 3, 6};
    float weight[TERMS] = {1, 0.5f, 0.5f, 1, 1, 2}, bags[BAGS][COLS];
    float grad_bags[BAGS][COLS] = {{1, 0}, {9, 9}, {0, 1}}, grad_table[ROWS][COLS];
    const spops_matrix x = spops_matrix_dense(table, ROWS, COLS, SPOPS_DTYPE_F32);
    const spops_matrix w = spops_matrix_dense(weight, TERMS, 1, SPOPS_DTYPE_F32);
    const spops_matrix grad_x = spops_matrix_dense(grad_table, ROWS, COLS, SPOPS_DTYPE_F32);
    spops_segments_options options = spops_segments_options_default();
    spops_context *ctx = NULL;
    spops_segments *plan = NULL;

    TRY(open_cpu(&ctx));
    options.idx = word; /* which row a term takes */
    options.num_rows = ROWS;
    options.gradients = SPOPS_GRADIENTS_LINEAR;
    TRY(spops_segments_create(ctx, BAGS, offsets, &options, &plan));
    TRY(spops_segreduce_execute(ctx, plan, SPOPS_REDUCE_SUM, x, &w,
                                spops_matrix_dense(bags, BAGS, COLS, SPOPS_DTYPE_F32), NULL));
    TRY(spops_segreduce_execute_backward(ctx, plan, SPOPS_REDUCE_SUM,
                                         spops_matrix_dense(grad_bags, BAGS, COLS, SPOPS_DTYPE_F32),
                                         x, &w, &grad_x, NULL));
    for (int i = 0; i < BAGS; ++i)
        printf("bag %d: %g %g\n", i, bags[i][0], bags[i][1]);
    for (int i = 0; i < ROWS; ++i)
        printf("%s%g %g", i == 0 ? "gradient of the table: " : ", ", grad_table[i][0],
               grad_table[i][1]);
    printf("\n");
    spops_segments_destroy(plan);
    spops_context_destroy(ctx);
    return 0;
}
