// SPDX-License-Identifier: Apache-2.0
/* The steps of DSVT. */
#include "dsvt/network.h"

#include "networks/tape_place.h"

#include <stdio.h>

const dsvt_config dsvt_base = {"base", 192, 8, 384, 4};
const dsvt_config dsvt_small = {"small", 48, 2, 96, 2};
const char *const dsvt_stage_names[DSVT_STAGES] = {"embedding", "block0", "block1",
                                                   "block2",    "block3", "head"};

int dsvt_sets(int shift, int axis)
{
    return DSVT_AXES * shift + axis;
}

/* Batch norm as all of them are here, with ReLU. */
static int add_batchnorm(const tape_place *p, const char *layer, int in)
{
    return place_batchnorm(p, layer, in, SPOPS_ACTIVATION_RELU, -1, 1e-5f);
}

/* Attention within sets and an MLP, each with a norm after its residual; then what came in once more. */
static int add_layer(const tape_place *p, const dsvt_config *c, int x, int position, int plan)
{
    const spops_activation none = SPOPS_ACTIVATION_NONE;
    char name[TAPE_NAME];
    int y, v, z = place_linear(p, "posembed.0", position, c->channels, -1, none);

    tape_pad_last(p->t, 2, 0);
    z = add_batchnorm(p, "posembed.1", z);
    z = place_linear(p, "posembed.3", z, c->channels, x,
                     none); /* of queries and keys, not of values */
    z = place_linear(p, "win_attn.qk", z, 2 * c->channels, -1, none);
    v = place_linear(p, "win_attn.v", x, c->channels, -1, none);
    y = tape_attention(p->t, place_name(p, "win_attn", name), p->stage, z, v, plan, c->heads);
    y = place_linear(p, "win_attn.out_proj", y, c->channels, x, none);
    y = place_layernorm(p, "win_attn.norm1", y, -1);
    z = place_linear(p, "win_attn.linear1", y, c->hidden, -1, SPOPS_ACTIVATION_GELU);
    z = place_linear(p, "win_attn.linear2", z, c->channels, y, none);
    z = place_layernorm(p, "win_attn.norm2", z, x);
    return place_layernorm(p, "norm", z, -1);
}

void dsvt_build(tape *t, const dsvt_config *c)
{
    const spops_activation none = SPOPS_ACTIVATION_NONE;
    int x = tape_add_input(t, 0, DSVT_INPUTS);
    const int places[DSVT_SHIFTS] = {tape_add_input(t, 0, DSVT_INPUTS),
                                     tape_add_input(t, 0, DSVT_INPUTS)};
    tape_place p = {t, 0, 0, 0, "vfe"};
    char name[TAPE_NAME];

    x = place_linear(&p, "linear", x, c->channels, -1, none);
    tape_pad_last(t, DSVT_FEATURES, 0);
    x = add_batchnorm(&p, "norm", x);
    for (int b = 0; b < c->blocks; ++b) {
        const int before = x, shift = b % DSVT_SHIFTS;
        p.stage = 1 + b;
        for (int axis = 0; axis < DSVT_AXES; ++axis) {
            snprintf(p.prefix, sizeof p.prefix, "stage_0.%d.encoder_list.%d", b, axis);
            x = add_layer(&p, c, x, places[shift], dsvt_sets(shift, axis));
        }
        snprintf(p.prefix, sizeof p.prefix, "residual_norm_stage_0.%d", b);
        x = tape_activation(t, place_name(&p, "sum", name), p.stage, x, none, before);
        x = place_layernorm(&p, "norm", x, -1);
    }
    p.stage = DSVT_STAGES - 1;
    tape_linear(t, "head", p.stage, x, DSVT_OUTPUTS, -1, none);
}
