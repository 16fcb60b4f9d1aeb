// SPDX-License-Identifier: Apache-2.0
/*
 * A network as a list of steps that is run forward, and backward for the gradients of all parameters: a
 * tape. A network's own file puts the steps down, its engine makes the plans that they run on.
 *
 * One description gives two tapes. A tape for training keeps what every step took. One for inference folds
 * constant norms, applies activations in epilogues, and gives the memory of a value that nobody reads any
 * more to the next.
 */
#ifndef NETWORKS_TAPE_H
#define NETWORKS_TAPE_H

#include "networks/device.h"
#include "networks/floors.h"

enum {
    TAPE_LEVELS = 6,
    TAPE_STEPS = 400,
    TAPE_VALUES = 512,
    TAPE_PARAMETERS = 1400,
    TAPE_PLANS = 32,
    TAPE_NAME = 56
};

typedef enum tape_kind {
    TAPE_CONV,      /* submanifold, on a level's map */
    TAPE_LINEAR,    /* times a matrix [in, out] */
    TAPE_ATTENTION, /* of q, k and v side by side in `in`; or q and k there, v in `other` */
    TAPE_LAYERNORM,
    TAPE_BATCHNORM, /* training: with the statistics of the rows, else with the running ones */
    TAPE_ACTIVATION,
    TAPE_POOL,   /* the largest of the rows of a coarser row */
    TAPE_UNPOOL, /* each finer row gets that of its coarser row */
    TAPE_KINDS
} tape_kind;

/* A matrix: rows of a level. */
typedef struct tape_value {
    int level, cols;
    int is_input; /* has no gradient */
    int grad_of;  /* the value whose gradient's memory it shares; its own number: none */
    int last_use; /* the last step that reads it */
    void *data, *grad;
    int is_read; /* its gradient is read beside the main stream, until this mark */
    void *read;
} tape_value;

/* Weights [taps * in, cols], or a vector of cols. It is drawn from low to high. A file has file_in and
   file_cols channels of it; the others are 0. */
typedef struct tape_parameter {
    char name[TAPE_NAME + 16];
    int64_t offset, rows, cols; /* elements from the start of all parameters; rows = taps * in */
    int taps, in;               /* taps 0: a vector */
    int file_in, file_cols;
    float low, high;
    int is_folded; /* follows from others, and is in no file */
} tape_parameter;

/*
 * out = what the kind says of in, then scale, shift and activation where there are any, plus residual: that
 * of LINEAR before the activation, of all others after it. Numbers of values, parameters and plans; -1:
 * none.
 */
typedef struct tape_step {
    tape_kind kind;
    char name[TAPE_NAME];
    int stage;
    int in, other, residual, out;
    int plan; /* of convs, patches or pools */
    int taps, heads;
    int weight, bias; /* of norms: gamma, beta */
    int scale, shift; /* of BATCHNORM: running mean and variance */
    float epsilon;
    spops_activation activation;
    int is_of_sum; /* of LAYERNORM: the step before is one with a residual, and both are one call */
    /* What the backward pass knows of it. */
    int adds_in, adds_other; /* 1: their gradients are there before, and are added to */
    int adds_residual;       /* 1: likewise, 0: residual shares that of out */
    void *lse;
    float *mean, *var;
} tape_step;

typedef struct tape {
    const device *d;
    spops_dtype dtype;
    int training;
    int num_values, num_parameters, num_steps;
    tape_value values[TAPE_VALUES];
    tape_parameter parameters[TAPE_PARAMETERS];
    tape_step steps[TAPE_STEPS];
    int output;           /* a value */
    int64_t num_elements; /* of all parameters */
    int has_product;      /* the forward pass that is being enqueued has one so far */
    /* What an engine sets before tape_alloc. */
    int64_t max_rows[TAPE_LEVELS];
    const int32_t *num_rows[TAPE_LEVELS]; /* [1] where the context runs */
    const spops_sparseconv *convs[TAPE_PLANS];
    const spops_patches *patches[TAPE_PLANS];
    const spops_pool *pools[TAPE_PLANS];
    /* Called before each step of the forward pass: enqueues and waits for what its plan needs; NULL: plans
       are ready. */
    spops_status (*before_step)(void *user, const tape_step *s);
    void *user;
    /* Gradients of weights run on its stream, beside those of rows; NULL: on that of d. */
    const device *beside;
    int runs_beside; /* something was enqueued there */
    /* Memory where the context runs. */
    float *wide, *grads; /* [num_elements]: parameters and their gradients */
    void *narrow;        /* the same parameters in dtype; wide where that is f32 */
    void *target;        /* like output */
    void *spare[TAPE_LEVELS];
    void *blocks[TAPE_VALUES];
    size_t block_bytes[TAPE_VALUES];
    int num_blocks;
} tape;

/* ---- Putting steps down: each returns the number of what it made. ------------------------------ */

void tape_start(tape *t, const device *d, spops_dtype dtype, int training);
int tape_add_input(tape *t, int level, int cols);
/* The last layer's channels without padding: in, or cols, or 0 for as many as there are. */
void tape_pad_last(tape *t, int file_in, int file_cols);

int tape_linear(tape *t, const char *name, int stage, int in, int cols, int residual,
                spops_activation activation);
int tape_conv(tape *t, const char *name, int stage, int in, int cols, int plan, int taps,
              int has_bias);
int tape_layernorm(tape *t, const char *name, int stage, int in, int residual);
/* Of what a linear layer, or a convolution, gave last, with an activation; residual is added after it. */
int tape_batchnorm(tape *t, const char *name, int stage, int in, spops_activation activation,
                   int residual, float epsilon);
int tape_activation(tape *t, const char *name, int stage, int in, spops_activation activation,
                    int residual);
int tape_attention(tape *t, const char *name, int stage, int qkv, int v, int plan, int heads);
int tape_pool(tape *t, const char *name, int stage, int in, int plan);
int tape_unpool(tape *t, const char *name, int stage, int in, int level, int plan);
/* A convolution and a linear layer after it; for inference one convolution. */
int tape_conv_linear(tape *t, const char *name, int stage, int in, int plan, int taps);

/* ---- Parameters, in host memory: [num_elements] ------------------------------------------------ */

/* Drawn, by name, so that two tapes of one network have the same; then what follows from others. */
int tape_draw(const tape *t, float *parameters);
int tape_fold(const tape *t, float *parameters);
/* A file: a line "KIND-weights 1 LAYOUT", then for each parameter a line "NAME TAPS IN OUT" and
   little-endian f32. Names are those of the original's checkpoint. LAYOUT, of spops/weights.h, is that of
   convolutions; linear layers (one tap) have torch's [out][in]. A vector has TAPS 0. 0 for success. */
int tape_save(const tape *t, const char *kind, float *parameters, const char *path);
int tape_load(const tape *t, const char *kind, float *parameters, const char *path);

/* ---- Running ----------------------------------------------------------------------------------- */

/* Memory and scratch, and the parameters; 0 for success. After max_rows, num_rows and plans. */
int tape_alloc(tape *t, const float *parameters);
void tape_free(tape *t);
int tape_upload_parameters(tape *t, const float *parameters);

spops_matrix tape_value_matrix(const tape *t, int value);
spops_matrix tape_grad_matrix(const tape *t, int value);

/* The steps of a kind, or of a stage; -1: all. */
typedef struct tape_part {
    int kind, stage;
} tape_part;
spops_status tape_forward(tape *t, tape_part part);
/* The gradient of half the squared distance of the output from the target, then of everything. */
spops_status tape_loss(tape *t);
spops_status tape_backward(tape *t, tape_part part);
/* Gradient descent: wide -= rate * grads, then narrow. */
spops_status tape_update(tape *t, float rate);

/* What a step must do at least. rows and pairs of the levels' maps, keys that a query of a plan meets. */
typedef struct tape_sizes {
    int64_t rows[TAPE_LEVELS], pairs[TAPE_PLANS];
    double keys[TAPE_PLANS];
} tape_sizes;
work tape_forward_work(const tape *t, const tape_step *s, const tape_sizes *sizes);
work tape_backward_work(const tape *t, const tape_step *s, const tape_sizes *sizes);

extern const char *const tape_kind_names[TAPE_KINDS];

#endif
