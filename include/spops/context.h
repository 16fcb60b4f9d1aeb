/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context: which backend and device, which stream, whose memory, how many threads, and the
 * scratch that execute calls work in.
 */
#ifndef SPOPS_CONTEXT_H
#define SPOPS_CONTEXT_H

#include "spops/types.h"

SPOPS_EXTERN_C_BEGIN

/**
 * A context. Calls on a CUDA context enqueue on its stream and return; their results are there once
 * the stream has run, for the host after spops_context_wait_sync(). On a CPU context there is
 * nothing to wait for: a call is finished, and its results may be read, when it returns.
 */
typedef struct spops_context spops_context;

/**
 * Where the library takes memory from. Each pair is either NULL, NULL (the default) or set.
 *
 * alloc returns NULL when it cannot serve; otherwise memory aligned to 256 bytes that nobody else
 * uses until free is called with the same bytes. host_* serve host memory on both backends
 * (default: posix_memalign; a CPU context then keeps up to 64 MiB that plans gave back, for the next
 * plan, until it ends). device_* serve device memory for a CUDA context, in the order of `stream`
 * (default: a memory pool of the context, which keeps what it has until the context ends).
 */
typedef struct spops_allocator {
    void *user; /* handed to every call */
    void *(*host_alloc)(void *user, size_t bytes);
    void (*host_free)(void *user, void *ptr, size_t bytes);
    void *(*device_alloc)(void *user, size_t bytes, void *stream);
    void (*device_free)(void *user, void *ptr, size_t bytes, void *stream);
} spops_allocator;

/** Choices of spops_context_create. */
typedef struct spops_context_options {
    size_t struct_size; /* sizeof(spops_context_options) */
    spops_backend_kind backend;
    int32_t device;      /* CUDA device ordinal; ignored on the CPU */
    int32_t num_threads; /* CPU threads a call may use, 1 to 4096; 0: as many as the processors that
                            the process may run on, or OMP_NUM_THREADS where that is less. The
                            context starts them when there is work for them, and fewer where the
                            system gives no more; results do not depend on how many there are */
    void *stream;        /* cudaStream_t the context works on; NULL: the legacy default stream */
    spops_allocator allocator;
    /* 1: linear layers may use a library of dense products, which is opened here: cuBLAS on CUDA, a
       CBLAS on the CPU where one is installed. 0: the library's own kernels alone. */
    int32_t dense_library;
    int32_t reserved; /* 0 */
} spops_context_options;

SPOPS_DEFINE_DEFAULT(spops_context_options)

/** What a context runs on. All sizes in bytes. */
typedef struct spops_device_info {
    size_t struct_size; /* set by the caller: sizeof(spops_device_info) */
    spops_backend_kind backend;
    char name[128];             /* "AMD EPYC ..." or "NVIDIA H200" */
    char isa[32];               /* "avx512", "avx2", "neon", "baseline"; "sm_90" */
    int32_t device;             /* CUDA ordinal, 0 on the CPU */
    int32_t compute_capability; /* 90 for sm_90; 0 on the CPU */
    int32_t num_processors;     /* threads used, or multiprocessors */
    int32_t reserved;
    int64_t cache_bytes;  /* L2 of the GPU, last-level cache of the CPU */
    int64_t memory_bytes; /* device memory, or the host's */
} spops_device_info;

SPOPS_DEFINE_DEFAULT(spops_device_info)

/**
 * Open a backend.
 *
 * options   NULL: all defaults. A shorter struct_size than today's is read as if the missing tail
 *           were zero, a longer one is refused.
 * out       The context; NULL after a failure.
 *
 * Where AUTO falls back to the CPU although the build has CUDA, spops_last_error(*out) says why until
 * a call fails.
 *
 * Errors    INVALID_ARGUMENT, BACKEND_UNAVAILABLE (CUDA asked for and no device opens; AUTO falls
 *           back to the CPU instead), NOT_SUPPORTED (dense_library, and cuBLAS cannot be opened),
 *           OUT_OF_MEMORY, CUDA.
 * Threads   Any. A context is used by one thread at a time; several contexts run side by side. A child
 *           after fork() may use and destroy the contexts of its parent that no thread was using,
 *           if they are on the CPU, and may open its own.
 */
SPOPS_API spops_status spops_context_create(const spops_context_options *options,
                                            spops_context **out);

/**
 * Wait for the context's work and free it. NULL is fine. Plans and reductions created with it must
 * be destroyed before, and captured graphs that hold its scratch must not run afterwards.
 */
SPOPS_API void spops_context_destroy(spops_context *ctx);

/**
 * Fill info (its struct_size set by the caller; only that many bytes are written).
 *
 * Errors    INVALID_ARGUMENT (NULL, struct_size).
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_context_get_device_info(spops_context *ctx, spops_device_info *info);

/** The backend that was opened; AUTO, which none is, for NULL. */
SPOPS_API spops_backend_kind spops_context_backend(const spops_context *ctx);

/** The stream that was given at creation; NULL for NULL. */
SPOPS_API void *spops_context_stream(const spops_context *ctx);

/**
 * Make sure that execute calls on ctx find `bytes` of scratch. May allocate and wait.
 *
 * The rule for scratch: making a plan reserves what calls with it need, in the context that made it,
 * so that a program with plans and one context never calls this. Two cases are left:
 *
 * - A plan that runs on another context: reserve there what its *_scratch_bytes says.
 * - Calls whose needs no plan knows, once before the first of them: norms (this call with
 *   spops_norm_scratch_bytes), attention (spops_attention_reserve) and linear layers
 *   (spops_linear_reserve). A call that finds too little says which of these to make.
 *
 * Scratch that is outgrown is given back, in the order of ctx's stream, unless an execute call took
 * it while the stream was captured: then it stays until ctx ends. It grows by half of what there is
 * at least, where memory allows, so that ctx holds at most half more than the most that was asked
 * for, and a quarter of that for counters; while it grows, the old block too.
 *
 * Errors    INVALID_ARGUMENT, OUT_OF_MEMORY, NOT_SUPPORTED (the stream is being captured), CUDA.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_context_reserve(spops_context *ctx, size_t bytes);

/**
 * Scratch of the caller's: execute calls on ctx work in it, from here on, instead of memory of the
 * context's own; so that a framework's allocator sees it, and captured graphs need nothing of ctx.
 *
 * memory    Where ctx runs, aligned to SPOPS_PLAN_ALIGNMENT; it must outlive those calls, and captured
 *           graphs that hold them. NULL: the context's own again.
 * bytes     Of memory. Calls find as much scratch in it as spops_context_scratch_memory asks the bytes
 *           for; calls that need more are refused (SCRATCH_TOO_SMALL). Plans that
 *           are made meanwhile reserve nothing.
 *
 * Stream    Enqueues on ctx's stream (counters that kernels keep there are zeroed). Waits for nothing,
 *           capturable.
 * Errors    INVALID_ARGUMENT (memory misaligned, bytes without memory), CUDA.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_context_set_scratch(spops_context *ctx, void *memory, size_t bytes);

/** Bytes of memory for spops_context_set_scratch that hold `scratch_bytes`; SIZE_MAX: too many. */
SPOPS_API size_t spops_context_scratch_memory(size_t scratch_bytes);

/**
 * One block of memory that a plan with capacities lives in: the option `memory` of every
 * spops_X_reserve. The block holds all that the plan keeps, with what spops_X_update works in, and no
 * address, so that it can be kept as a tensor, copied, and attached elsewhere on the device
 * (spops/plan.h).
 *
 * Memory    Where ctx runs, SPOPS_PLAN_ALIGNMENT aligned. The library never frees it; it must
 *           outlive every plan made in it, and captured graphs that use them. Several plans may be
 *           attached to one block; a set of one changes all of them. Copies of a block must be
 *           ordered after the work that fills it. Scratch stays the context's.
 */
typedef struct spops_plan_memory {
    size_t struct_size; /* sizeof(spops_plan_memory) */
    void *block;        /* NULL: reserve makes no plan (out is NULL), and sets bytes */
    size_t bytes;       /* of the block; at least what reserve says for the same arguments */
} spops_plan_memory;

SPOPS_DEFINE_DEFAULT(spops_plan_memory)

#define SPOPS_PLAN_ALIGNMENT 16 /* of a plan's block, bytes; more may be a little faster */

/**
 * Wait until everything enqueued on ctx's stream has run, and report its errors. On a CPU context
 * there is nothing to wait for.
 *
 * Errors    INVALID_ARGUMENT (ctx is NULL), NOT_SUPPORTED (the stream is being captured), CUDA.
 * Threads   One thread at a time per ctx.
 */
SPOPS_API spops_status spops_context_wait_sync(spops_context *ctx);

/**
 * One line about the last failure of a call on ctx: which call, argument and element, what was
 * found, what was expected. With NULL: the calling thread's last failure that had no context.
 * Never NULL; valid until the next failure of the same kind.
 */
SPOPS_API const char *spops_last_error(const spops_context *ctx);

/** Takes a line of the log of calls, without a line's end; line is valid until it returns. */
typedef void (*spops_log_sink)(void *user, const char *line);

/**
 * Log calls: one line for each public call that takes a context, as it begins, with its name, the
 * dtypes and shapes of its tensors, its plans, and the attributes that differ from their defaults;
 * after it a line that begins with two spaces for a plan that it made or for its status and message
 * if it failed. What is in tensors is not read.
 *
 * sink      Called by the thread that calls, before the call goes on. It must return, and must not
 *           call the library. NULL: no log, which is the default.
 * user      Handed to every call of sink.
 *
 * The environment variable SPOPS_LOG, read once when the process makes its first context, does the
 * same where no sink is set: `calls` writes lines to standard error, `calls:FILE` at the end of FILE;
 * context_create refuses any other text and a file that cannot be written. Programs that run with
 * more rights than their user do not read it.
 *
 * Threads   Not while another thread is in a call of the library.
 */
SPOPS_API void spops_log_set(spops_log_sink sink, void *user);

/** Version of the library that runs, such as "0.1.0"; SPOPS_VERSION_* is that of the headers. */
SPOPS_API const char *spops_version(void);

/** 1 if this build contains the CUDA backend, else 0. */
SPOPS_API int spops_has_cuda(void);

SPOPS_EXTERN_C_END

#endif
