/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types shared by every module: status codes, dtypes, backends, reductions, and the matrix view.
 * Plain C99, usable from C++; no CUDA header is needed to call the library.
 */
#ifndef SPOPS_TYPES_H
#define SPOPS_TYPES_H

#include <stddef.h>
#include <stdint.h>

/** The version of these headers; spops_version() has that of the library. */
#define SPOPS_VERSION_MAJOR 0
/** Before 1.0, the version of the interface. */
#define SPOPS_VERSION_MINOR 1
/** Counts repairs. */
#define SPOPS_VERSION_PATCH 0

#ifdef __cplusplus
#define SPOPS_EXTERN_C_BEGIN extern "C" {
#define SPOPS_EXTERN_C_END   }
#define SPOPS_RETURN_DEFAULT(T)                                                                    \
    T value = {};                                                                                  \
    value.struct_size = sizeof value;                                                              \
    return value
#else
#define SPOPS_EXTERN_C_BEGIN
#define SPOPS_EXTERN_C_END
/* A literal: where a function has several defaults, GCC 12 for AArch64 copies a variable before its
   struct_size is stored. */
#define SPOPS_RETURN_DEFAULT(T)                                                                    \
    return (T)                                                                                     \
    {                                                                                              \
        .struct_size = sizeof(T)                                                                   \
    }
#endif

/**
 * A struct whose first field is struct_size may grow at its end. Define T_default(): every field is
 * 0, which is its default, and struct_size is set. The library reads a shorter struct as if what is
 * missing were 0 and fills only what is there; a longer one is refused. docs/architecture.md has
 * the rule.
 */
#define SPOPS_DEFINE_DEFAULT(T)                                                                    \
    static inline T T##_default(void)                                                              \
    {                                                                                              \
        SPOPS_RETURN_DEFAULT(T);                                                                   \
    }

/** The library is compiled with hidden visibility; only what carries SPOPS_API is exported. */
#define SPOPS_API __attribute__((visibility("default")))

SPOPS_EXTERN_C_BEGIN

/** What a call that can fail returns. The detail is in spops_last_error(). */
typedef enum spops_status {
    SPOPS_STATUS_OK = 0,
    SPOPS_STATUS_INVALID_ARGUMENT = 1,    /* an argument breaks the call's contract */
    SPOPS_STATUS_OUT_OF_MEMORY = 2,       /* host or device memory could not be had */
    SPOPS_STATUS_NOT_SUPPORTED = 3,       /* valid, but this backend or build does not do it */
    SPOPS_STATUS_SCRATCH_TOO_SMALL = 4,   /* call spops_context_reserve first */
    SPOPS_STATUS_BACKEND_UNAVAILABLE = 5, /* no such device, no driver, or built without CUDA */
    SPOPS_STATUS_CUDA = 6,                /* the CUDA runtime reported an error */
    SPOPS_STATUS_CORRUPT_DATA = 7,      /* saved bytes are truncated, damaged or of another kind */
    SPOPS_STATUS_CAPACITY_EXCEEDED = 8, /* a plan built on the stream met more than it can hold */
    SPOPS_STATUS_COMPILE_FAILED = 9,    /* NVRTC is absent or refused a reduction's source */
    SPOPS_STATUS_COMM_BROKEN = 10       /* a rank of a communicator stopped or did not come */
} spops_status;

/** Where a context runs. */
typedef enum spops_backend_kind {
    SPOPS_BACKEND_AUTO = 0, /* CUDA where a device can be opened, else CPU */
    SPOPS_BACKEND_CPU = 1,
    SPOPS_BACKEND_CUDA = 2
} spops_backend_kind;

/**
 * Element types. Arithmetic accumulates in f32 whatever the element type, but for F64, unless a call
 * is asked for less (spops_accumulate). Which operator takes which is in its header.
 *
 * F64 is for checking gradients: rows of F64 are multiplied and added in f64 where others are in f32,
 * and what is f32 beside rows of fewer bits (the bias of a layer, the statistics of a norm) is f64
 * beside them. The CPU alone takes them, without vector code of its own.
 *
 * F8E4M3 is the OCP form: no infinity, NaN is 0x7f and 0xff, the largest value is 448. F8E5M2 has
 * infinities and NaN as IEEE would; its largest value is 57344. F4E2M1 holds 0, 0.5, 1, 1.5, 2, 3,
 * 4, 6 and their negatives, two elements to a byte, the even column in the low four bits; rows
 * begin on a byte, so cols and row_stride, which count elements, are even.
 */
typedef enum spops_dtype {
    SPOPS_DTYPE_F32 = 0,
    SPOPS_DTYPE_F16 = 1,
    SPOPS_DTYPE_BF16 = 2,
    SPOPS_DTYPE_F8E4M3 = 3,
    SPOPS_DTYPE_F8E5M2 = 4,
    SPOPS_DTYPE_F4E2M1 = 5,
    SPOPS_DTYPE_I8 = 6,  /* codes: of features, weights and quantising; else NOT_SUPPORTED */
    SPOPS_DTYPE_I32 = 7, /* indices */
    SPOPS_DTYPE_I64 = 8, /* indices of others: spops_convert_execute makes them i32 */
    SPOPS_DTYPE_F64 = 9  /* rows on the CPU, with sums of f64; NOT_SUPPORTED on CUDA */
} spops_dtype;

/**
 * How sums are carried, where a call lets the caller choose.
 *
 * F16 permits f16 where that is faster: up to 16 terms in a row, a run, may be multiplied and added
 * in f16, each rounded once; sums of runs are added in f32. A backend may also be more precise.
 *
 * Error     Let S be the sum of the magnitudes of n terms as stored, before any scale, and
 *           s = min(n, 16) 2^-11 + n 2^-23. The error of their sum is at most
 *           s / (1 - s) S + n 2^-24, where s <= 1/2 (4 million terms). A term meets at most
 *           min(n, 16) roundings of f16 and n of f32 (matrix units truncate: 2^-23); a product that
 *           is subnormal in f16 loses at most 2^-25, which what follows may double. From 16 to some
 *           thousand terms that is 0.8 % of S.
 *
 * Overflow  A run whose partial sums exceed f16's 65504 may become an infinity, and with another of
 *           the other sign NaN, although the whole sum is small. That cannot happen where the
 *           magnitudes of any 16 terms add up to at most 64000. A caller whose terms are larger
 *           stores them smaller, by a power of two, and gives that back as a scale: scales are
 *           applied in f32, to the whole sum.
 */
typedef enum spops_accumulate {
    SPOPS_ACCUMULATE_F32 = 0,
    SPOPS_ACCUMULATE_F16 = 1
} spops_accumulate;

/**
 * Reductions of a segment's terms v[0..n-1] (v[t] = w[t] * x[idx[t]], rounded to f32), per column.
 *
 * NaN propagates in all of them. -0 and +0 compare equal in min and max. Where terms tie, the
 * earliest term of the segment is the one whose index and gradient count. Gradients are those of
 * the output with respect to v[t].
 */
typedef enum spops_reduce {
    SPOPS_REDUCE_SUM = 0,  /* empty segment: 0.          gradient: 1 */
    SPOPS_REDUCE_MEAN = 1, /* sum / n. empty: 0.         gradient: 1 / n */
    SPOPS_REDUCE_MIN = 2,  /* empty: +infinity.          gradient: 1 at the winner, else 0 */
    SPOPS_REDUCE_MAX = 3,  /* empty: -infinity.          gradient: 1 at the winner, else 0 */
    SPOPS_REDUCE_PROD = 4, /* empty: 1.                  gradient: product of the others */
    SPOPS_REDUCE_FIRST_CUSTOM = 1024, /* ids from spops_reduce_create start here */
    SPOPS_REDUCE_LAST_CUSTOM = INT32_MAX
} spops_reduce;

/**
 * A row-major matrix seen by value; it never owns its data. Element (r, c) is at
 * data + (r * row_stride + c) elements. row_stride >= cols (it is not looked at when rows <= 1).
 * data lives where the context runs: host memory for CPU, device memory for CUDA; it is aligned to
 * its element. data may be NULL when rows or cols is 0. Elements of F4E2M1 are half a byte each.
 */
typedef struct spops_matrix {
    void *data;
    int64_t rows;
    int64_t cols;
    int64_t row_stride; /* elements */
    spops_dtype dtype;
} spops_matrix;

/** A matrix whose rows follow each other without a gap. For inputs that are const, see below. */
static inline spops_matrix spops_matrix_dense(void *data, int64_t rows, int64_t cols,
                                              spops_dtype dtype)
{
    spops_matrix m;
    m.data = data;
    m.rows = rows;
    m.cols = cols;
    m.row_stride = cols;
    m.dtype = dtype;
    return m;
}

/**
 * The same of elements that the caller may only read. It is for a call's inputs: no call writes to
 * a matrix that its contract does not name as written.
 */
static inline spops_matrix spops_matrix_dense_const(const void *data, int64_t rows, int64_t cols,
                                                    spops_dtype dtype)
{
#ifdef __cplusplus
    return spops_matrix_dense(const_cast<void *>(data), rows, cols, dtype);
#else
    return spops_matrix_dense((void *)(uintptr_t)data, rows, cols, dtype);
#endif
}

/** Bytes of one element; 0 for a value that is no dtype (and for F4E2M1, which packs two). */
SPOPS_API size_t spops_dtype_bytes(spops_dtype dtype);

/** Columns first to first + count - 1 of m, where they lie; m must have them. Not for F4E2M1. */
static inline spops_matrix spops_matrix_columns(spops_matrix m, int64_t first, int64_t count)
{
    if (m.data != NULL) m.data = (char *)m.data + first * (int64_t)spops_dtype_bytes(m.dtype);
    m.cols = count;
    return m;
}

/** Lower-case name such as "f16"; "?" for a value that is no dtype. */
SPOPS_API const char *spops_dtype_name(spops_dtype dtype);

/** Name of a status, such as "INVALID_ARGUMENT"; "?" for a value that is none. */
SPOPS_API const char *spops_status_name(spops_status status);

SPOPS_EXTERN_C_END

#endif
