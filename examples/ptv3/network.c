// SPDX-License-Identifier: Apache-2.0
/* The steps of Point Transformer V3, by the names of its checkpoints. */
#include "ptv3/network.h"

#include "networks/tape_place.h"

#include <stdio.h>

const ptv3_config ptv3_base = {.name = "base",
                               .depths = {2, 2, 2, 6, 2},
                               .channels = {32, 64, 128, 256, 512},
                               .heads = {2, 4, 8, 16, 32},
                               .up_depths = {2, 2, 2, 2},
                               .up_channels = {64, 64, 128, 256},
                               .up_heads = {4, 4, 8, 16},
                               .patch_rows = 1024};

const ptv3_config ptv3_small = {.name = "small",
                                .depths = {4, 1, 1, 1, 1},
                                .channels = {16, 32, 32, 48, 64},
                                .heads = {1, 2, 2, 3, 4},
                                .up_depths = {1, 1, 1, 2},
                                .up_channels = {32, 32, 32, 48},
                                .up_heads = {2, 2, 2, 3},
                                .patch_rows = 48};

const char *const ptv3_stage_names[PTV3_STAGES] = {
    "embedding", "enc0", "enc1", "enc2", "enc3", "enc4", "dec3", "dec2", "dec1", "dec0", "head"};

int ptv3_patches(int level, int curve)
{
    return PTV3_CURVES * level + curve;
}

/* Batch norm as all of them are here, with GELU. */
static int add_batchnorm(const tape_place *p, const char *layer, int in, int residual)
{
    return place_batchnorm(p, layer, in, SPOPS_ACTIVATION_GELU, residual, 1e-3f);
}

static int add_block(const tape_place *p, int x, int curve)
{
    const int c = p->t->values[x].cols;
    const spops_activation none = SPOPS_ACTIVATION_NONE;
    char name[TAPE_NAME];
    int y =
        tape_conv_linear(p->t, place_name(p, "cpe", name), p->stage, x, PTV3_WITHIN + p->level, 27);

    x = place_layernorm(p, "cpe.2", y, x);
    y = place_layernorm(p, "norm1.0", x, -1);
    y = place_linear(p, "attn.qkv", y, 3 * c, -1, none);
    y = tape_attention(p->t, place_name(p, "attn", name), p->stage, y, -1,
                       ptv3_patches(p->level, curve), p->heads);
    x = place_linear(p, "attn.proj", y, c, x, none);
    y = place_layernorm(p, "norm2.0", x, -1);
    y = place_linear(p, "mlp.0.fc1", y, 4 * c, -1, SPOPS_ACTIVATION_GELU);
    return place_linear(p, "mlp.0.fc2", y, c, x, none);
}

static int add_blocks(tape_place *p, const char *part, int x, int depth)
{
    for (int i = 0; i < depth; ++i) {
        snprintf(p->prefix, sizeof p->prefix, "%.3s.%s%d.block%d", part, part, p->level, i);
        x = add_block(p, x, i % PTV3_CURVES);
    }
    return x;
}

/* From the level above, beside what the encoder left at this one. */
static int add_up(tape_place *p, int x, int skip, int cols)
{
    const spops_activation none = SPOPS_ACTIVATION_NONE;
    char name[TAPE_NAME];

    snprintf(p->prefix, sizeof p->prefix, "dec.dec%d.up", p->level);
    x = place_linear(p, "proj.0", x, cols, -1, none);
    x = add_batchnorm(p, "proj.1", x, -1);
    x = tape_unpool(p->t, place_name(p, "unpool", name), p->stage, x, p->level, p->level);
    skip = place_linear(p, "proj_skip.0", skip, cols, -1, none);
    return add_batchnorm(p, "proj_skip.1", skip, x);
}

void ptv3_build(tape *t, const ptv3_config *c)
{
    const spops_activation none = SPOPS_ACTIVATION_NONE;
    int skips[PTV3_LEVELS], x = tape_add_input(t, 0, PTV3_INPUTS);
    tape_place p = {t, 0, 0, 0, "embedding.stem"};
    char name[TAPE_NAME];

    x = tape_conv(t, place_name(&p, "conv", name), 0, x, c->channels[0], PTV3_STEM, 125, 0);
    tape_pad_last(t, PTV3_FEATURES, 0);
    x = add_batchnorm(&p, "norm", x, -1);
    for (p.level = 0; p.level < PTV3_LEVELS; ++p.level) {
        p.stage = 1 + p.level;
        p.heads = c->heads[p.level];
        if (p.level > 0) {
            snprintf(p.prefix, sizeof p.prefix, "enc.enc%d.down", p.level);
            x = place_linear(&p, "proj", x, c->channels[p.level], -1, none);
            x = tape_pool(t, place_name(&p, "pool", name), p.stage, x, p.level - 1);
            x = add_batchnorm(&p, "norm.0", x, -1);
        }
        x = skips[p.level] = add_blocks(&p, "enc", x, c->depths[p.level]);
    }
    for (p.level = PTV3_LEVELS - 2; p.level >= 0; --p.level) {
        p.stage = 2 * PTV3_LEVELS - 1 - p.level;
        p.heads = c->up_heads[p.level];
        x = add_up(&p, x, skips[p.level], c->up_channels[p.level]);
        x = add_blocks(&p, "dec", x, c->up_depths[p.level]);
    }
    tape_linear(t, "seg_head", PTV3_STAGES - 1, x, PTV3_OUTPUTS, -1, none);
    tape_pad_last(t, 0, PTV3_CLASSES);
}
