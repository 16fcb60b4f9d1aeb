// SPDX-License-Identifier: Apache-2.0
// The laws that every built-in reduction must keep, taken over src/segreduce/reduce_ops.def: a new op is
// covered by being in the list. The plain and the traced form are held to the same laws.
#include <criterion/criterion.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "spops/device/reduce_ops.h"
#include "tests/support/random.h"

enum { STATE_BYTES = 8, MAX_TERMS = 12 };

// One form of an op behind functions of one type; states are copied as bytes.
typedef struct op {
    const char *name;
    size_t bytes;
    void (*identity)(void *state);
    void (*lift)(void *state, float v, int32_t term);
    void (*combine)(void *a, const void *b); // a holds the earlier terms
    float (*finalize)(const void *state, int64_t count);
    int32_t (*arg)(const void *state);                                      // traced only
    float (*grad)(float v, int32_t term, const void *state, int64_t count); // traced only
    bool has_arg, has_grad;
} op;

#define DEFINE_VALUES(prefix, f)                                                                   \
    static void prefix##_identity(void *state)                                                     \
    {                                                                                              \
        const spops_##f a = spops_##f##_identity();                                                \
        memcpy(state, &a, sizeof a);                                                               \
    }                                                                                              \
    static void prefix##_lift(void *state, float v, int32_t term)                                  \
    {                                                                                              \
        const spops_##f a = spops_##f##_lift(v, term);                                             \
        memcpy(state, &a, sizeof a);                                                               \
    }                                                                                              \
    static void prefix##_combine(void *a, const void *b)                                           \
    {                                                                                              \
        spops_##f x, y;                                                                            \
        memcpy(&x, a, sizeof x);                                                                   \
        memcpy(&y, b, sizeof y);                                                                   \
        x = spops_##f##_combine(x, y);                                                             \
        memcpy(a, &x, sizeof x);                                                                   \
    }                                                                                              \
    static float prefix##_finalize(const void *state, int64_t count)                               \
    {                                                                                              \
        spops_##f a;                                                                               \
        memcpy(&a, state, sizeof a);                                                               \
        return spops_##f##_finalize(a, count);                                                     \
    }
#define DEFINE_TRACE(prefix, f)                                                                    \
    static int32_t prefix##_arg(const void *state)                                                 \
    {                                                                                              \
        spops_##f a;                                                                               \
        memcpy(&a, state, sizeof a);                                                               \
        return spops_##f##_arg(a);                                                                 \
    }                                                                                              \
    static float prefix##_grad(float v, int32_t term, const void *state, int64_t count)            \
    {                                                                                              \
        spops_##f a;                                                                               \
        memcpy(&a, state, sizeof a);                                                               \
        return spops_##f##_grad(v, term, a, count);                                                \
    }
#define SPOPS_REDUCE_OP(NAME, plain, traced)                                                       \
    DEFINE_VALUES(plain_##NAME, plain)                                                             \
    DEFINE_VALUES(traced_##NAME, traced)                                                           \
    DEFINE_TRACE(traced_##NAME, traced)
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP

static const op plain_ops[] = {
#define SPOPS_REDUCE_OP(NAME, plain, traced)                                                       \
    {#NAME,                                                                                        \
     sizeof(spops_##plain),                                                                        \
     plain_##NAME##_identity,                                                                      \
     plain_##NAME##_lift,                                                                          \
     plain_##NAME##_combine,                                                                       \
     plain_##NAME##_finalize,                                                                      \
     NULL,                                                                                         \
     NULL,                                                                                         \
     false,                                                                                        \
     false},
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
};
static const op traced_ops[] = {
#define SPOPS_REDUCE_OP(NAME, plain, traced)                                                       \
    {#NAME " (traced)",        sizeof(spops_##traced),  traced_##NAME##_identity,                  \
     traced_##NAME##_lift,     traced_##NAME##_combine, traced_##NAME##_finalize,                  \
     traced_##NAME##_arg,      traced_##NAME##_grad,    spops_##traced##_has_arg,                  \
     spops_##traced##_has_grad},
#include "segreduce/reduce_ops.def"
#undef SPOPS_REDUCE_OP
};
enum { NUM_OPS = sizeof plain_ops / sizeof plain_ops[0] };

static const op *every_op(int i)
{
    return i < NUM_OPS ? &plain_ops[i] : &traced_ops[i - NUM_OPS];
}

// Terms first .. last - 1 folded from the left.
static void fold(const op *o, void *state, const float *v, int first, int last)
{
    unsigned char one[STATE_BYTES];
    o->identity(state);
    for (int t = first; t < last; ++t) {
        o->lift(one, v[t], t);
        o->combine(state, one);
    }
}

static bool same(float a, float b)
{
    return a == b || (isnan(a) && isnan(b));
}

// Distinct magnitudes between 1/2 and 3/2, of both signs: no ties, no overflow.
static void draw(test_rng *rng, float *v, int n)
{
    for (int i = 0; i < n; ++i) {
        const double magnitude = 0.5 + (i + 0.5 * test_rng_unit(rng)) / n;
        v[i] = (float)(test_rng_next(rng) & 1 ? magnitude : -magnitude);
    }
    for (int i = n - 1; i > 0; --i) {
        const int64_t j = test_rng_below(rng, i + 1);
        const float keep = v[i];
        v[i] = v[j];
        v[j] = keep;
    }
}

// Values where order and class of numbers matter.
static void draw_hostile(test_rng *rng, float *v, int n)
{
    static const float hostile[] = {0.0f, -0.0f, 1.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, 2.0f};
    for (int i = 0; i < n; ++i)
        v[i] = hostile[test_rng_below(rng, 9)];
}

Test(laws, states_are_small)
{
    for (int i = 0; i < 2 * NUM_OPS; ++i) {
        cr_assert(every_op(i)->bytes <= STATE_BYTES, "%s: %zu bytes", every_op(i)->name,
                  every_op(i)->bytes);
    }
}

Test(laws, identity_is_neutral)
{
    test_rng rng = test_rng_make(1);
    for (int i = 0; i < 2 * NUM_OPS; ++i) {
        const op *o = every_op(i);
        for (int round = 0; round < 2000; ++round) {
            unsigned char a[STATE_BYTES], left[STATE_BYTES], right[STATE_BYTES], none[STATE_BYTES];
            float v[MAX_TERMS];
            const int n = 1 + (int)test_rng_below(&rng, MAX_TERMS);
            if (round & 1)
                draw(&rng, v, n);
            else
                draw_hostile(&rng, v, n);
            fold(o, a, v, 0, n);
            o->identity(none);
            memcpy(right, a, sizeof a);
            o->combine(right, none);
            memcpy(left, none, sizeof left);
            o->combine(left, a);
            const float expected = o->finalize(a, n);
            cr_assert(same(o->finalize(right, n), expected), "%s: a + identity", o->name);
            cr_assert(same(o->finalize(left, n), expected), "%s: identity + a", o->name);
            if (o->arg != NULL) {
                cr_assert(o->arg(right) == o->arg(a) && o->arg(left) == o->arg(a), "%s", o->name);
            }
        }
    }
}

// Any way to bracket the same terms: equal up to 2 n roundings of n terms, and the same winner.
Test(laws, combine_associates)
{
    test_rng rng = test_rng_make(2);
    for (int i = 0; i < 2 * NUM_OPS; ++i) {
        const op *o = every_op(i);
        for (int round = 0; round < 4000; ++round) {
            unsigned char all[STATE_BYTES], part[STATE_BYTES], pieces[STATE_BYTES];
            float v[MAX_TERMS];
            double magnitude = 0.0;
            const int n = 1 + (int)test_rng_below(&rng, MAX_TERMS);
            if (round & 1)
                draw(&rng, v, n);
            else
                draw_hostile(&rng, v, n);
            for (int t = 0; t < n; ++t)
                magnitude += fabs((double)v[t]);
            fold(o, all, v, 0, n);
            o->identity(pieces);
            for (int begin = 0; begin < n;) {
                const int end = begin + 1 + (int)test_rng_below(&rng, n - begin);
                fold(o, part, v, begin, end);
                o->combine(pieces, part);
                begin = end;
            }
            const float x = o->finalize(all, n), y = o->finalize(pieces, n);
            const double scale = fmax(magnitude, fabs((double)x));
            cr_assert(same(x, y) || fabs((double)x - (double)y) <= 2 * n * 0x1p-24 * scale,
                      "%s: %.9g and %.9g for %d terms", o->name, (double)x, (double)y, n);
            if (o->arg != NULL) {
                cr_assert(o->arg(all) == o->arg(pieces), "%s: terms %d and %d win", o->name,
                          o->arg(all), o->arg(pieces));
            }
        }
    }
}

// The reduction of one term.
static float alone(const op *o, float v)
{
    unsigned char state[STATE_BYTES];
    fold(o, state, &v, 0, 1);
    return o->finalize(state, 1);
}

// Plain and traced agree, and an arg names the earliest term whose own value is the result.
Test(laws, plain_and_traced_agree)
{
    test_rng rng = test_rng_make(3);
    for (int i = 0; i < NUM_OPS; ++i) {
        for (int round = 0; round < 4000; ++round) {
            unsigned char plain[STATE_BYTES], traced[STATE_BYTES];
            float v[MAX_TERMS];
            const int n = (int)test_rng_below(&rng, MAX_TERMS + 1);
            if (round & 1)
                draw(&rng, v, n);
            else
                draw_hostile(&rng, v, n);
            fold(&plain_ops[i], plain, v, 0, n);
            fold(&traced_ops[i], traced, v, 0, n);
            const float x = plain_ops[i].finalize(plain, n), y = traced_ops[i].finalize(traced, n);
            cr_assert(same(x, y), "%s: %g, traced %g", plain_ops[i].name, (double)x, (double)y);
            const int32_t arg = traced_ops[i].arg(traced);
            cr_assert(arg >= (traced_ops[i].has_arg && n > 0 ? 0 : -1) && arg < n,
                      "%s: arg %d of %d terms", plain_ops[i].name, arg, n);
            cr_assert(traced_ops[i].has_arg || arg == -1, "%s: arg %d", plain_ops[i].name, arg);
            if (arg >= 0)
                cr_assert(same(alone(&traced_ops[i], v[arg]), x), "%s: arg", plain_ops[i].name);
            for (int t = 0; t < arg; ++t) {
                cr_assert(!same(alone(&traced_ops[i], v[t]), x),
                          "%s: term %d of %g won over term %d", plain_ops[i].name, arg, (double)x,
                          t);
            }
        }
    }
}

// The slope between the results where term t moves by low and by high, and the scale of the two.
static double slope(const op *o, const float *v, int n, int t, float low, float high, double *scale)
{
    unsigned char state[STATE_BYTES];
    float moved[MAX_TERMS];
    double value[2];
    for (int side = 0; side < 2; ++side) {
        double magnitude = 0.0;
        memcpy(moved, v, (size_t)n * sizeof *v);
        moved[t] += side == 0 ? high : low;
        fold(o, state, moved, 0, n);
        value[side] = (double)o->finalize(state, n);
        for (int k = 0; k < n; ++k)
            magnitude += fabs((double)moved[k]);
        *scale = fmax(*scale, fmax(magnitude, fabs(value[side])));
    }
    return (value[0] - value[1]) / ((double)high - (double)low);
}

// d out / d v of each term against a central difference of step h. It errs by the rounding of two
// results of size s, 2 n s 2^-24 / (2 h), and by its curvature: of a smooth op by h^2 / 6 of the
// third derivative, of which a step of 2 h shows four times as much. Nothing of it where an op is
// linear in one term while no winner changes (magnitudes are drawn apart by more than 4 h). At 0 an
// op may have a kink, as the magnitude has: its gradient is then any slope from left to right.
Test(laws, grad_agrees_with_differences)
{
    const float h = 0x1p-7f;
    test_rng rng = test_rng_make(4);
    for (int i = 0; i < NUM_OPS; ++i) {
        const op *o = &traced_ops[i];
        for (int round = 0; round < 2000 && o->has_grad; ++round) {
            unsigned char state[STATE_BYTES];
            float v[6];
            const int n = 1 + (int)test_rng_below(&rng, 6);
            draw(&rng, v, n);
            if (round % 5 == 0) v[test_rng_below(&rng, n)] = 0.0f;
            fold(o, state, v, 0, n);
            for (int t = 0; t < n; ++t) {
                double scale = 0.0;
                const double difference = slope(o, v, n, t, -h, h, &scale);
                const double twice = slope(o, v, n, t, -2.0f * h, 2.0f * h, &scale);
                const double left = slope(o, v, n, t, -h, 0.0f, &scale);
                const double right = slope(o, v, n, t, 0.0f, h, &scale);
                const double grad = (double)o->grad(v[t], t, state, n);
                const double bound =
                    4.0 * n * scale * 0x1p-24 / (double)h + fabs(twice - difference);
                const bool in_kink = v[t] == 0.0f && grad >= fmin(left, right) - bound &&
                                     grad <= fmax(left, right) + bound;
                const bool close = fabs(grad - difference) <= bound || in_kink;
                cr_assert(close, "%s: term %d of %d has gradient %g, the difference is %g", o->name,
                          t, n, grad, difference);
            }
        }
    }
}
