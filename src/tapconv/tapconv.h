// SPDX-License-Identifier: Apache-2.0
// Convolution by taps, sparse or of points: what the plans of both are and do alike. Their makers say
// which row meets which at which tap, and make the schedules of IMPLICIT_GEMM from that.
#ifndef SPOPS_TAPCONV_TAPCONV_H
#define SPOPS_TAPCONV_TAPCONV_H

#include "call/rows.h"
#include "core/plan.h"
#include "igemm/igemm_args.h"
#include "mvmr/mvmr.h"
#include "tapconv/dataflow.h"
#include "tapconv/layer.h"

// What options of both plans say.
typedef struct spops_tapconv_options {
    int32_t backward, quantized;
    spops_dataflow dataflow;
    int64_t max_in_channels, max_out_channels;
    int32_t tile;
    int32_t crop_independent;
    int32_t weights_only; // gradients of weights and bias alone; backward is 1
} spops_tapconv_options;

// Fields of both descriptions; mirrored: gradients of x run over the target side of a symmetric relation.
enum {
    SPOPS_TAPCONV_NUM_OUT,
    SPOPS_TAPCONV_NUM_IN,
    SPOPS_TAPCONV_NUM_TAPS,
    SPOPS_TAPCONV_MAX_IN_CHANNELS,
    SPOPS_TAPCONV_MAX_OUT_CHANNELS,
    SPOPS_TAPCONV_DATAFLOW,
    SPOPS_TAPCONV_BACKWARD,
    SPOPS_TAPCONV_QUANTIZED,
    SPOPS_TAPCONV_TILE,
    SPOPS_TAPCONV_MAX_PAIRS,
    SPOPS_TAPCONV_MIRRORED,
    SPOPS_TAPCONV_CROP_INDEPENDENT,
    SPOPS_TAPCONV_NUM_FIELDS
};

// The first member of a plan.
typedef struct spops_tapconv {
    spops_plan base; // its workspace: of making schedules again, where they do not have their own
    spops_relation
        relation; // keys are taps; sizes alone before the plan is bound, and once detached
    spops_dataflow dataflow; // as asked for
    bool backward, quantized, mirrored, crop_independent, weights_only;
    int64_t max_in_channels, max_out_channels;

    spops_triplets *triplets; // FETCH_ON_DEMAND; NULL where another dataflow serves every call
    bool has_igemm;           // its schedules are there
    int32_t tile;             // that is asked for; 0: by the tuning table
    spops_igemm_schedule schedules[SPOPS_NUM_SIDES]; // SOURCE with backward, unless mirrored;
                                                     // none with weights_only
    size_t igemm_scratch_bytes;
    spops_dataflow_choice choice; // how AUTO and GATHER_MATMUL_SCATTER are served
} spops_tapconv;

// ---- Making -------------------------------------------------------------------------------------

// Ranges of options; 0 channels become the default.
spops_status spops_tapconv_check_options(spops_context *ctx, const char *call,
                                         spops_tapconv_options *options);

// Options as fields, and a relation; and both, without its addresses, from fields, which are checked.
void spops_tapconv_put_options(const spops_tapconv_options *options, int64_t *fields);
void spops_tapconv_put_relation(const spops_relation *relation, bool mirrored, int64_t *fields);
spops_status spops_tapconv_read(spops_context *ctx, const char *call, spops_tapconv *conv,
                                spops_dataflow last);

// Whether the plan shall have IMPLICIT_GEMM and the device does. If it was asked for by name, no is a
// failure.
spops_status spops_tapconv_wants_igemm(spops_context *ctx, const char *call,
                                       const spops_tapconv *conv, bool *wants);
// What the relation lacks for it, as an error if it was asked for by name.
spops_status spops_tapconv_lacks(spops_context *ctx, const char *call, const spops_tapconv *conv,
                                 const char *what);
// Whether there is a schedule of a side.
bool spops_tapconv_has_side(const spops_tapconv *conv, int side);
// The schedules have their sizes: so has scratch, and kernels can be loaded.
void spops_tapconv_size_igemm(spops_context *ctx, spops_tapconv *conv);
// A tile that was asked for is one of the device's, for schedules as the plan's.
spops_status spops_tapconv_check_tile(spops_context *ctx, const char *call,
                                      const spops_tapconv *conv);

// Triplets into the relation's capacities, a part of the plan, and filling them from it.
spops_status spops_tapconv_read_triplets(spops_context *ctx, spops_tapconv *conv);
spops_status spops_tapconv_set_triplets(spops_context *ctx, spops_tapconv *conv);

// Of a kind's spops_plan_ops.
spops_status spops_tapconv_prepare(spops_context *ctx, spops_plan *plan);
void spops_tapconv_destroy(spops_plan *plan);
size_t spops_tapconv_bytes(const spops_plan *plan);
spops_status spops_tapconv_state(spops_context *ctx, const spops_plan *plan, int64_t *counts);
size_t spops_tapconv_scratch_bytes(const spops_plan *plan);

// ---- Calls --------------------------------------------------------------------------------------

spops_status spops_tapconv_get_choice(spops_context *ctx, const char *call,
                                      const spops_tapconv *conv, spops_conv_pass pass,
                                      spops_dtype dtype, int64_t in_channels, int64_t out_channels,
                                      const spops_conv_layer *layer, spops_conv_choice *choice);
spops_status spops_tapconv_execute(spops_context *ctx, spops_operator_id op,
                                   const spops_tapconv *conv, spops_matrix x, spops_matrix w,
                                   const spops_conv_layer *layer, spops_matrix out);
spops_status spops_tapconv_execute_backward(spops_context *ctx, spops_operator_id op,
                                            const spops_tapconv *conv, spops_matrix grad_sum,
                                            spops_matrix x, spops_matrix w,
                                            const spops_conv_layer *layer,
                                            const spops_matrix *grad_x, const spops_matrix *grad_w,
                                            void *grad_bias);

#endif
