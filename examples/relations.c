// SPDX-License-Identifier: Apache-2.0
/*
 * A graph layer with relations, on the CPU: every edge says which node tells which other node
 * something, and by which kind of relation; each kind has its own matrix. Forward, and the gradient
 * of the matrices. Then rows times the matrix of their group, for an embedding by kind of node.
 */
#include <spops/spops.h>
#include <stdio.h>

enum { NUM_NODES = 4, NUM_KINDS = 2, NUM_EDGES = 5, IN = 2, OUT = 3, NUM_GROUPS = 3 };

#define TRY(call)                                                                                  \
    if ((call) != SPOPS_STATUS_OK) {                                                               \
        fprintf(stderr, "%s\n", spops_last_error(ctx));                                            \
        goto done;                                                                                 \
    }

static void print_rows(const char *name, const float *rows, int num_rows)
{
    printf("%s:", name);
    for (int r = 0; r < num_rows; ++r)
        printf("%s %g %g %g", r == 0 ? "" : " |", rows[r * OUT], rows[r * OUT + 1],
               rows[r * OUT + 2]);
    printf("\n");
}

int main(void)
{
    /* Edge t: node to[t] hears node from[t] by relation kind[t]. Nobody tells node 3 anything. */
    const int32_t to[NUM_EDGES] = {0, 0, 1, 2, 2}, from[NUM_EDGES] = {1, 2, 0, 3, 3};
    const int32_t kind[NUM_EDGES] = {0, 1, 0, 1, 1};
    const int32_t first_row[NUM_GROUPS + 1] = {0, 1, 1, 4}; /* group 1 has no rows */
    float x[NUM_NODES][IN] = {{1, 0}, {0, 1}, {2, 1}, {1, 1}};
    float w[NUM_KINDS][IN][OUT] = {{{1, 2, 3}, {4, 5, 6}}, {{1, 0, 0}, {0, 1, 0}}};
    float w_group[NUM_GROUPS][IN][OUT] = {{{1, 1, 1}, {1, 1, 1}}, {{0}}, {{2, 0, 0}, {0, 2, 0}}};
    float heard[NUM_NODES][OUT], grad_w[NUM_KINDS][IN][OUT];
    const spops_triplets_shape shape = {NUM_NODES, NUM_NODES, NUM_KINDS, NUM_EDGES};
    const spops_matrix x_rows = spops_matrix_dense(x, NUM_NODES, IN, SPOPS_DTYPE_F32);
    const spops_matrix heard_rows = spops_matrix_dense(heard, NUM_NODES, OUT, SPOPS_DTYPE_F32);
    const spops_matrix matrices = spops_matrix_dense(w, NUM_KINDS * IN, OUT, SPOPS_DTYPE_F32);
    spops_context_options context_options = spops_context_options_default();
    spops_triplets_options options = spops_triplets_options_default();
    spops_context *ctx = NULL;
    spops_triplets *edges = NULL, *groups = NULL;
    int result = 1;

    context_options.backend = SPOPS_BACKEND_CPU;
    TRY(spops_context_create(&context_options, &ctx));
    options.backward = 1; /* the plan will run gradients */
    options.max_matrix_elements = IN * OUT;
    TRY(spops_triplets_create(ctx, &shape, to, from, kind, &options, &edges));
    TRY(spops_mvmr_execute(ctx, edges, x_rows, matrices, NULL, NULL, heard_rows));
    print_rows("heard", &heard[0][0], NUM_NODES);

    /* With the gradient of heard equal to heard. */
    TRY(spops_vvor_execute(ctx, edges, x_rows, heard_rows, NULL, NULL,
                           spops_matrix_dense(grad_w, NUM_KINDS * IN, OUT, SPOPS_DTYPE_F32)));
    print_rows("gradient", &grad_w[0][0][0], NUM_KINDS * IN);

    TRY(spops_triplets_create_from_offsets(ctx, NUM_GROUPS, first_row, NULL, &groups));
    TRY(spops_mvmr_execute(ctx, groups, x_rows,
                           spops_matrix_dense(w_group, NUM_GROUPS * IN, OUT, SPOPS_DTYPE_F32), NULL,
                           NULL, heard_rows));
    print_rows("embedded", &heard[0][0], NUM_NODES);
    result = 0;

done:
    spops_triplets_destroy(groups);
    spops_triplets_destroy(edges);
    spops_context_destroy(ctx);
    return result;
}
