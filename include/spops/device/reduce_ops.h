/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The built-in reductions, each written once for the CPU and the GPU: identity, lift of one term,
 * combine (a holds the earlier terms), finalize, and for traced ops also arg (the winning term, -1
 * for none) and grad (d out / d v of a term with value v). Meaning: spops_reduce in spops/types.h.
 *
 * C11 and CUDA C++, also under NVRTC; no other header than common.h. A state of f32 is at most
 * SPOPS_REDUCE_STATE_BYTES_MAX bytes.
 */
#ifndef SPOPS_DEVICE_REDUCE_OPS_H
#define SPOPS_DEVICE_REDUCE_OPS_H

#include "spops/device/common.h"

#ifdef __CUDACC_RTC__
#define SPOPS_INFINITY (__int_as_float(0x7f800000))
#else
#define SPOPS_INFINITY (__builtin_huge_valf())
#endif

/* What values are reduced in: f32. The CPU includes this header once more for rows of f64. */
#ifndef SPOPS_REDUCE_REAL
#define SPOPS_REDUCE_REAL float
#endif
typedef SPOPS_REDUCE_REAL spops_real;

/*
 * What a traced op says of itself:
 *   has_arg    it knows the winning term: there are index outputs, and lift reads its term
 *   has_grad   there is a gradient; without one grad is never asked, and backward is refused
 *   is_linear  the gradient needs no more than the number of terms: plans of
 *              SPOPS_GRADIENTS_LINEAR serve it
 */
enum { spops_sum_has_arg = 0, spops_sum_has_grad = 1, spops_sum_is_linear = 1 };
enum { spops_mean_has_arg = 0, spops_mean_has_grad = 1, spops_mean_is_linear = 1 };
enum { spops_argmin_has_arg = 1, spops_argmin_has_grad = 1, spops_argmin_is_linear = 0 };
enum { spops_argmax_has_arg = 1, spops_argmax_has_grad = 1, spops_argmax_is_linear = 0 };
enum { spops_prodz_has_arg = 0, spops_prodz_has_grad = 1, spops_prodz_is_linear = 0 };

/* Sum: 0 + terms. */
typedef struct spops_sum {
    spops_real v;
} spops_sum;
SPOPS_HD spops_sum spops_sum_identity(void)
{
    spops_sum a = {0.0f};
    return a;
}
SPOPS_HD spops_sum spops_sum_lift(spops_real v, int32_t term)
{
    spops_sum a = {v};
    (void)term;
    return a;
}
SPOPS_HD spops_sum spops_sum_combine(spops_sum a, spops_sum b)
{
    a.v += b.v;
    return a;
}
SPOPS_HD spops_real spops_sum_finalize(spops_sum a, int64_t count)
{
    (void)count;
    return a.v;
}
SPOPS_HD int32_t spops_sum_arg(spops_sum a)
{
    (void)a;
    return -1;
}
SPOPS_HD spops_real spops_sum_grad(spops_real v, int32_t term, spops_sum a, int64_t count)
{
    (void)v, (void)term, (void)a, (void)count;
    return 1.0f;
}

/* Mean: the sum, divided by the number of terms at the end. */
typedef spops_sum spops_mean;
SPOPS_HD spops_mean spops_mean_identity(void)
{
    return spops_sum_identity();
}
SPOPS_HD spops_mean spops_mean_lift(spops_real v, int32_t term)
{
    return spops_sum_lift(v, term);
}
SPOPS_HD spops_mean spops_mean_combine(spops_mean a, spops_mean b)
{
    return spops_sum_combine(a, b);
}
SPOPS_HD spops_real spops_mean_finalize(spops_mean a, int64_t count)
{
    return count > 0 ? a.v / (spops_real)count : 0.0f;
}
SPOPS_HD int32_t spops_mean_arg(spops_mean a)
{
    return spops_sum_arg(a);
}
SPOPS_HD spops_real spops_mean_grad(spops_real v, int32_t term, spops_mean a, int64_t count)
{
    (void)v, (void)term, (void)a;
    return count > 0 ? (spops_real)1 / (spops_real)count : 0.0f;
}

/* Min and max of values alone. Bitwise logic instead of branches, so that columns vectorise. */
typedef struct spops_min {
    spops_real v;
} spops_min;
SPOPS_HD spops_min spops_min_identity(void)
{
    spops_min a = {SPOPS_INFINITY};
    return a;
}
SPOPS_HD spops_min spops_min_lift(spops_real v, int32_t term)
{
    spops_min a = {v};
    (void)term;
    return a;
}
SPOPS_HD spops_min spops_min_combine(spops_min a, spops_min b)
{
    const int take_b = (b.v < a.v) | ((b.v != b.v) & (a.v == a.v));
    a.v = take_b ? b.v : a.v;
    return a;
}
SPOPS_HD spops_real spops_min_finalize(spops_min a, int64_t count)
{
    (void)count;
    return a.v;
}

typedef struct spops_max {
    spops_real v;
} spops_max;
SPOPS_HD spops_max spops_max_identity(void)
{
    spops_max a = {-SPOPS_INFINITY};
    return a;
}
SPOPS_HD spops_max spops_max_lift(spops_real v, int32_t term)
{
    spops_max a = {v};
    (void)term;
    return a;
}
SPOPS_HD spops_max spops_max_combine(spops_max a, spops_max b)
{
    const int take_b = (b.v > a.v) | ((b.v != b.v) & (a.v == a.v));
    a.v = take_b ? b.v : a.v;
    return a;
}
SPOPS_HD spops_real spops_max_finalize(spops_max a, int64_t count)
{
    (void)count;
    return a.v;
}

/* Min and max with the term that won: the earliest of those that tie, the first NaN if there is
 * one. */
typedef struct spops_argmin {
    spops_real v;
    int32_t term; /* -1: no term yet */
} spops_argmin;
SPOPS_HD spops_argmin spops_argmin_identity(void)
{
    spops_argmin a = {SPOPS_INFINITY, -1};
    return a;
}
SPOPS_HD spops_argmin spops_argmin_lift(spops_real v, int32_t term)
{
    spops_argmin a = {v, term};
    return a;
}
SPOPS_HD spops_argmin spops_argmin_combine(spops_argmin a, spops_argmin b)
{
    const int better = (b.v < a.v) | ((b.v != b.v) & (a.v == a.v));
    const int take_b = (b.term >= 0) & ((a.term < 0) | better);
    a.v = take_b ? b.v : a.v;
    a.term = take_b ? b.term : a.term;
    return a;
}
SPOPS_HD spops_real spops_argmin_finalize(spops_argmin a, int64_t count)
{
    (void)count;
    return a.v;
}
SPOPS_HD int32_t spops_argmin_arg(spops_argmin a)
{
    return a.term;
}
SPOPS_HD spops_real spops_argmin_grad(spops_real v, int32_t term, spops_argmin a, int64_t count)
{
    (void)v, (void)count;
    return term == a.term ? 1.0f : 0.0f;
}

typedef struct spops_argmax {
    spops_real v;
    int32_t term; /* -1: no term yet */
} spops_argmax;
SPOPS_HD spops_argmax spops_argmax_identity(void)
{
    spops_argmax a = {-SPOPS_INFINITY, -1};
    return a;
}
SPOPS_HD spops_argmax spops_argmax_lift(spops_real v, int32_t term)
{
    spops_argmax a = {v, term};
    return a;
}
SPOPS_HD spops_argmax spops_argmax_combine(spops_argmax a, spops_argmax b)
{
    const int better = (b.v > a.v) | ((b.v != b.v) & (a.v == a.v));
    const int take_b = (b.term >= 0) & ((a.term < 0) | better);
    a.v = take_b ? b.v : a.v;
    a.term = take_b ? b.term : a.term;
    return a;
}
SPOPS_HD spops_real spops_argmax_finalize(spops_argmax a, int64_t count)
{
    (void)count;
    return a.v;
}
SPOPS_HD int32_t spops_argmax_arg(spops_argmax a)
{
    return a.term;
}
SPOPS_HD spops_real spops_argmax_grad(spops_real v, int32_t term, spops_argmax a, int64_t count)
{
    (void)v, (void)count;
    return term == a.term ? 1.0f : 0.0f;
}

/* Product of values alone. */
typedef struct spops_prod {
    spops_real v;
} spops_prod;
SPOPS_HD spops_prod spops_prod_identity(void)
{
    spops_prod a = {1.0f};
    return a;
}
SPOPS_HD spops_prod spops_prod_lift(spops_real v, int32_t term)
{
    spops_prod a = {v};
    (void)term;
    return a;
}
SPOPS_HD spops_prod spops_prod_combine(spops_prod a, spops_prod b)
{
    a.v *= b.v;
    return a;
}
SPOPS_HD spops_real spops_prod_finalize(spops_prod a, int64_t count)
{
    (void)count;
    return a.v;
}

/*
 * Product with zeros counted apart, so that the product of the other terms is known for each term:
 * with no zero it is product / v, with one zero it is the product of the rest at that zero and 0
 * elsewhere, with more it is 0. An infinite term's own gradient is NaN (infinity / infinity).
 */
typedef struct spops_prodz {
    spops_real v; /* product of the terms that are not zero */
    int32_t zeros;
} spops_prodz;
SPOPS_HD spops_prodz spops_prodz_identity(void)
{
    spops_prodz a = {1.0f, 0};
    return a;
}
SPOPS_HD spops_prodz spops_prodz_lift(spops_real v, int32_t term)
{
    spops_prodz a;
    (void)term;
    a.v = v == 0.0f ? 1.0f : v;
    a.zeros = v == 0.0f;
    return a;
}
SPOPS_HD spops_prodz spops_prodz_combine(spops_prodz a, spops_prodz b)
{
    a.v *= b.v;
    a.zeros += b.zeros;
    return a;
}
SPOPS_HD spops_real spops_prodz_finalize(spops_prodz a, int64_t count)
{
    (void)count;
    return a.zeros > 0 ? a.v * 0.0f : a.v;
}
SPOPS_HD int32_t spops_prodz_arg(spops_prodz a)
{
    (void)a;
    return -1;
}
SPOPS_HD spops_real spops_prodz_grad(spops_real v, int32_t term, spops_prodz a, int64_t count)
{
    (void)term, (void)count;
    if (a.zeros == 0) return a.v / v;
    return ((a.zeros == 1) & (v == 0.0f)) ? a.v : 0.0f;
}

#endif
