/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators as data: a list of all that the library runs, and one way to call each of them, for
 * bindings, plugins and interpreters that loop over operators instead of naming them.
 *
 * Every operator has a boxed entry, int __tvm_ffi_NAME(self, args, num_args, ret). It takes an array
 * of 16-byte values in the layout of tvm-ffi's C convention, tensors as DLPack's DLTensor *, so that
 * it is a function of tvm-ffi as it is; nothing of tvm-ffi is compiled or linked. spops_call makes
 * the same call from C.
 *
 * Order of the values of a call:
 *
 *     1. inputs, then outputs, in the order of the row. A plan among them is
 *            a POINTER to the plan (a spops_plan *), or
 *            a TENSOR: the block that the plan lives in, of any dtype (frameworks take i32), or
 *            as an output NONE: the call makes a plan
 *     2. one for each plan among them, absent ones too: of a block its description, a TENSOR of i64 in
 *        host memory; else NONE
 *     3. attributes
 *     4. where an argument may be absent: `present`, an INT of one bit for each argument that may be,
 *        in their order, 1 where it is given; absent ones have no value in 1. Or NONE: then all have
 *        one, NONE for those that are absent
 *
 * A plan as a block. The description of a plan that stands on others (spops_plan_kinds' parents) is
 * followed by those of its parents, in their order, 0 for one that is left out; the block is the plan's
 * own, followed by those of its parents, each from a multiple of 256 bytes on. spops_plan_measure gives
 * the size for such a description. A plan is thus one tensor and a few integers, whatever it stands on.
 * The call attaches a handle, which its context keeps for the next call with the same block.
 *
 *     as an input    The block holds the plan that is described, made by such a call or a reserve.
 *     as an output   The call fills the block, whatever is in it, as the X_update of its kind does: by
 *                    counts that only the device knows, without allocating or waiting, also while the
 *                    stream is captured. Arrays have room for the capacities of the description; an
 *                    optional num_X, an int32 where the call runs, says how much counts, and must be
 *                    given, as it must not where the call makes a plan. Plans that the new one stands
 *                    on are copied into its block. An attribute that the description has too is left
 *                    out, or the same. A part of a plan (voxels_coords) is copied.
 *
 * A communicator among them is a POINTER to a spops_comm. All its ranks make the call. What one rank's call
 * refuses, once its values are what the row says, is an error on all; a value that is no TENSOR or POINTER
 * where the row has one ends that rank's call alone.
 *
 * Kinds without a description (spops_plan_measure says NOT_SUPPORTED) are handles alone, and so is what
 * segments_offsets, kernel_map_inverse and bev_plan_ranks make.
 *
 * docs/operators.md lists all rows; spops.ops.json has them beside the library.
 */
#ifndef SPOPS_CALL_H
#define SPOPS_CALL_H

#include "spops/plan.h"

SPOPS_EXTERN_C_BEGIN

/** What a value is; the numbers are those of tvm-ffi. */
typedef enum spops_value_type {
    SPOPS_VALUE_NONE = 0,
    SPOPS_VALUE_INT = 1,
    SPOPS_VALUE_BOOL = 2, /* in i */
    SPOPS_VALUE_FLOAT = 3,
    SPOPS_VALUE_POINTER = 4,
    SPOPS_VALUE_TENSOR = 7, /* p is a DLTensor *, or a spops_tensor * */
    SPOPS_VALUE_STRING = 8  /* s is a string that ends with 0: the name of an enumerator */
} spops_value_type;

/** What a value holds, by its type. */
typedef union spops_value_content {
    int64_t i;     /**< INT, BOOL */
    double f;      /**< FLOAT */
    void *p;       /**< POINTER, TENSOR */
    const char *s; /**< STRING */
} spops_value_content;

/** A value of a boxed call: the layout of TVMFFIAny. Final: nothing will be added. */
typedef struct spops_value {
    int32_t type;      /* spops_value_type; objects of tvm-ffi are read too */
    uint32_t reserved; /* 0 */
    spops_value_content v;
} spops_value;

/** A tensor: the layout of DLPack's DLTensor. Final: nothing will be added. */
typedef struct spops_tensor {
    void *data;
    int32_t device_type; /* DLPack's: 1 host, 2 CUDA, 3 pinned host, 13 managed */
    int32_t device_id;
    int32_t num_dims;
    uint8_t dtype_code; /* DLPack's: 0 int, 1 unsigned, 2 float, 4 bfloat, ... */
    uint8_t dtype_bits;
    uint16_t dtype_lanes;
    const int64_t *shape;
    const int64_t *strides; /* elements; NULL: without gaps */
    uint64_t byte_offset;
} spops_tensor;

/** A boxed entry: 0, or -1 with the error in spops_last_error(NULL), and with tvm-ffi if it is loaded. */
typedef int (*spops_boxed)(void *self, const spops_value *args, int32_t num_args, spops_value *ret);

/** What an argument of an operator is. */
typedef enum spops_argument_kind {
    SPOPS_ARGUMENT_TENSOR = 0,
    SPOPS_ARGUMENT_PLAN = 1,
    SPOPS_ARGUMENT_INT = 2,
    SPOPS_ARGUMENT_FLOAT = 3,
    SPOPS_ARGUMENT_ENUM = 4,  /* one name of values, or its number */
    SPOPS_ARGUMENT_FLAGS = 5, /* names of values joined by |, or the sum of their bits */
    SPOPS_ARGUMENT_INTS = 6,  /* a TENSOR of i64 in host memory, an INT for one, or NONE for none */
    SPOPS_ARGUMENT_FLOATS = 7, /* likewise of f64 */
    SPOPS_ARGUMENT_COMM = 8 /* a communicator, a POINTER to a spops_comm; it has no description */
} spops_argument_kind;

/** An argument of an operator, as its row says. Text is static; what does not apply is NULL or 0. */
typedef struct spops_operator_argument {
    size_t struct_size;
    const char *name;
    spops_argument_kind kind;
    int32_t is_optional; /* may be absent */
    const char *needs;   /* optional: only together with this argument */
    const char
        *type; /* dtypes joined by |, or a variable of the row; kind of a plan; enum's name */
    int32_t num_dims;
    const char *dims[3]; /* names, or expressions over sizes, attributes and fields of plans */
    int32_t is_dense;    /* rows follow each other without a gap; else any row stride will do */
    const char
        *may_be; /* of an output: the input that it may be itself; a plan: that it is part of */
    int32_t is_updated; /* of an output: what it holds is read */
    const char *first,
        *last;           /* of indices, attributes: the range, as expressions, of their values */
    const char *values;  /* of an ENUM or FLAGS: its names, in the order of their numbers or bits */
    int64_t int_default; /* of an attribute */
    double float_default;
    int32_t count; /* INTS and FLOATS: how many at most */
} spops_operator_argument;

/** A row of the list of operators. Text is static. */
typedef struct spops_operator {
    size_t struct_size;
    const char *name;     /* of the operator; the entry is __tvm_ffi_NAME */
    const char *function; /* that it calls */
    const char *types;    /* dtype variables and what they may be: "T:float W:f32|T" */
    const char *inputs;   /* the row's text; its grammar stands in src/call/operators.def */
    const char *outputs;
    const char *attributes;
    const char *gradient; /* "operator(arguments) -> whose gradients its outputs are"; "": none */
    const char *scratch;  /* that the call needs, as an expression; "": none */
    const char *doc;      /* one line */
    int32_t index;        /* of the row */
    int32_t num_inputs, num_outputs, num_attributes;
    int32_t num_optional; /* bits of `present`; 0: the call has no such value */
    const spops_operator_argument *const *arguments; /* inputs, outputs, attributes */
    spops_boxed entry;
    /* 1: a communicator, or a plan of a kind that has no block (spops_plan_measure), is among its
       arguments: handles of this process. What holds tensors alone, such as a node of a file, an engine's
       plugin or a program for XLA, has no such operator. */
    int32_t needs_handles;
} spops_operator;

/** All operators. *num is set to how many there are. Neither fails. */
SPOPS_API const spops_operator *const *spops_operators(int32_t *num);

/** The operator of this name; NULL: there is none. */
SPOPS_API const spops_operator *spops_operator_find(const char *name);

/**
 * Call an operator.
 *
 * ctx       Where it runs, with the scratch that it has (spops_context_reserve). NULL: on a context of
 *           the library's own, one of those for the tensors' device and the calling thread's stream
 *           (spops_call_set_stream), which is made, and whose scratch grows, as needed.
 * args      [num_args], in the order above. Integers stand for FLOAT attributes too.
 * ret       What the call gives besides tensors: the POINTER of a plan that it made, else NONE.
 *
 * A plan that was made is destroyed by spops_call_destroy.
 *
 * Stream    Execute calls enqueue, and allocate only where the library's own context has too little
 *           scratch; calls that make plans work as their functions do.
 * Errors    Those of the function; INVALID_ARGUMENT for values that are not as the row says. A block
 *           that was to be filled may hold an empty plan after an error. The message is in spops_last_error(ctx), and for NULL in spops_last_error(NULL).
 * Threads   Any with NULL; else one at a time per ctx.
 */
SPOPS_API spops_status spops_call(spops_context *ctx, const spops_operator *op,
                                  const spops_value *args, int32_t num_args, spops_value *ret);

/**
 * Scratch that a call needs in its context (spops_context_reserve, spops_context_scratch_memory), for
 * callers that hand it over before the call, such as engines that plan their memory: what `scratch` of
 * the row is for these arguments.
 *
 * args      [num_args], as of spops_call. No data is read: tensors and blocks may have NULL for it.
 * bytes     The scratch; 0: none.
 *
 * Stream    Enqueues nothing, waits for nothing.
 * Errors    INVALID_ARGUMENT (NULL, values that are not as the row says). Shapes are not checked.
 * Threads   Any with NULL; else one at a time per ctx.
 */
SPOPS_API spops_status spops_call_scratch_bytes(spops_context *ctx, const spops_operator *op,
                                                const spops_value *args, int32_t num_args,
                                                size_t *bytes);

enum { SPOPS_CALL_MAX_DIMS = 8 /**< of a tensor whose shape is asked for */ };

/** How a caller combines sizes that it does not know yet: numbers below 0 of its own. Final. */
typedef struct spops_size_algebra {
    /** a op b, op one of + - * / (of whole numbers) M (the larger) m (the smaller), of which one or both are
     *  the caller's: a number from 0 on, one of the caller's, or INT64_MIN where there is none. */
    int64_t (*combine)(void *user, char op, int64_t a, int64_t b);
    void *user;
} spops_size_algebra;

/**
 * Dtype and shape of an output of a call, before there is any data: for engines that lay out their memory,
 * and for those that do not know all sizes yet.
 *
 * ctx       Where the call will run, which says how large blocks of plans are. NULL: a context of the
 *           library's own, as of spops_call.
 * args      [num_args], as of spops_call, but no data is read, and any may be NONE. Sizes below 0 of inputs
 *           are symbols of the caller. Of a plan among them its description counts alone. An output has a
 *           value where its dtype is one of several that no input gives (that of its TENSOR is taken; 0 bits:
 *           none), and where it is a plan: a TENSOR, with the description of the plan that is wanted.
 * output    0 to op->num_outputs - 1; also one that may be absent and has no value.
 * algebra   NULL: without symbols.
 * out       Its dtype, 0 bits where it does not follow from what is given, and num_dims; of a plan those of
 *           its block, [words] of i32.
 * shape     [SPOPS_CALL_MAX_DIMS], which out->shape then is; a size below 0 is a symbol. What inputs without rows
 *           do not say is 0. NULL: sizes are not asked for, and descriptions not needed.
 *
 * Stream    Enqueues nothing, waits for nothing.
 * Errors    INVALID_ARGUMENT: NULL, values that are not as the row says, or what does not follow from them,
 *           which the message names. Those of spops_plan_measure. Inputs are not compared with each other.
 * Threads   Any with NULL; else one at a time per ctx.
 */
SPOPS_API spops_status spops_call_output(spops_context *ctx, const spops_operator *op,
                                         const spops_value *args, int32_t num_args, int32_t output,
                                         const spops_size_algebra *algebra, spops_tensor *out,
                                         int64_t *shape);

/**
 * Call an operator on a context of the library's own, as spops_call does for NULL, for engines that hand
 * over a stream and a workspace.
 *
 * stream         The call's stream, if it runs on a CUDA device: not that of spops_call_set_stream.
 * scratch        Memory that the call works in, where it runs, aligned to SPOPS_PLAN_ALIGNMENT; free
 *                for later work of the stream when the call returns. NULL: the context's own, which grows.
 * scratch_bytes  Of scratch: what spops_context_scratch_memory says for spops_call_scratch_bytes.
 * op, args, num_args, ret  As of spops_call.
 *
 * Stream    As spops_call. With scratch nothing is allocated on the device, also while the stream is
 *           captured.
 * Errors    Those of spops_call, in spops_last_error(NULL); OUT_OF_MEMORY for too little scratch,
 *           INVALID_ARGUMENT where it is misaligned.
 * Threads   Any.
 */
SPOPS_API spops_status spops_call_on_stream(void *stream, void *scratch, size_t scratch_bytes,
                                            const spops_operator *op, const spops_value *args,
                                            int32_t num_args, spops_value *ret);

/**
 * The stream of the calling thread's calls on a CUDA device; NULL: the legacy default stream. Boxed
 * entries take the stream of tvm-ffi's environment where one was set there.
 */
SPOPS_API void spops_call_set_stream(int32_t device, void *stream);

/**
 * Where the calling thread's calls run that have neither tensors nor plans, such as bev_plan: a CUDA
 * device; -1, the default: the CPU.
 */
SPOPS_API void spops_call_set_device(int32_t device);

/**
 * Memory of the library's own contexts on CUDA devices, of which those made from here on take their
 * plans and scratch: a framework's allocator. NULL: the library's own again. The host_* functions are
 * not used.
 *
 * While a stream is captured, calls on it take their scratch from there, and give it back in the order
 * of the stream before they return: device_alloc must then give memory that the graph keeps. Captured
 * calls need no call before them.
 *
 * Boxed entries that make plans on these contexts read what they need of the device, and return when the
 * rest is enqueued: a plan is there in the order of the stream that it is made on, as memory of the
 * framework is. spops_call waits as the functions do.
 *
 * Threads   Any; the functions are called by threads that make calls and destroy plans.
 */
SPOPS_API void spops_call_set_allocator(const spops_allocator *allocator);

/**
 * Destroy a plan that a call with NULL for ctx gave, with its context out of other calls' way. NULL is
 * fine. plan: what ret had. Where another thread's call is running on the plan's context, the plan goes when
 * that call returns. Waits for no work: memory is given back in the order of the stream that the
 * plan was made on; other streams that read it must be waited for by that one.
 */
SPOPS_API void spops_call_destroy(spops_plan *plan);

/**
 * Handlers of XLA's foreign function interface (0.3 and later of 0), for buffers in host memory and on a
 * CUDA device: a program for XLA, such as JAX makes, calls operators by registering them. Attributes of
 * the call:
 *
 *     _operator      string, its name
 *     _present       i64: what is given of the arguments that may be absent, as `present` above; 0 where
 *                    there is no such argument
 *     _descriptions  i64 array: for each plan among inputs and outputs how many integers its description
 *                    has, 0 for one that is absent, and these integers; or -1 and the address of the
 *                    plan, which then has no buffer
 *     others         those of the row by their names: i64, f64, or arrays of these; an empty one stands
 *                    for NONE
 *
 * Buffers of the call: the inputs that are given, plans as their blocks; results: the outputs that are
 * given. Operands after the inputs are the contents that results begin with, which XLA puts into the same
 * memory (aliases of operands).
 *
 * call_frame  XLA_FFI_CallFrame *.
 *
 * Returns an XLA_FFI_Error *, NULL for success: INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED or
 * INTERNAL, with the line that spops_call has.
 * Stream    That of the call frame.
 * Threads   Any.
 */
SPOPS_API void *spops_call_xla_host(void *call_frame);

/** The same for arrays on a CUDA device: on the stream that the frame has, in scratch that XLA lends. */
SPOPS_API void *spops_call_xla_cuda(void *call_frame);

/**
 * Destroy the library's own contexts that no call uses and no plan was made with. There are others
 * again when calls need them.
 */
SPOPS_API void spops_call_release(void);

SPOPS_EXTERN_C_END

#endif
