// SPDX-License-Identifier: Apache-2.0
// Boxed entries: unpack, take a context, call the operator's boxed function, report.
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "boxed/blocks.h"
#include "boxed/outputs.h"
#include "boxed/values.h"
#include "call/call_check.h"
#include "comm/comm.h"
#include "core/backend.h"

static spops_status (*const functions[])(spops_boxed_call *) = {
#define SPOPS_OPERATOR(name, function, types, inputs, outputs, attributes, gradient, scratch, doc) \
    spops_boxed_##name,
#include "call/operators.def"
};

// ---- Streams ------------------------------------------------------------------------------------

enum { MAX_DEVICES = 64 };
static _Thread_local void *streams[MAX_DEVICES];

void spops_call_set_stream(int32_t device, void *stream)
{
    if (device >= 0 && device < MAX_DEVICES) streams[device] = stream;
}

void *spops_call_stream(int32_t device)
{
    return device >= 0 && device < MAX_DEVICES ? streams[device] : NULL;
}

static _Thread_local int32_t default_device = -1;

void spops_call_set_device(int32_t device)
{
    default_device = device;
}

static void *own_stream(const spops_call_place *place)
{
    const bool has_one = place->backend == SPOPS_BACKEND_CUDA && place->device < MAX_DEVICES;
    return has_one ? streams[place->device] : NULL;
}

// ---- tvm-ffi, where it is loaded ------------------------------------------------------------------

static struct {
    void (*set_raised)(const char *kind, const char *message);
    void *(*get_stream)(int32_t device_type, int32_t device_id);
} tvm;

static void find_tvm(void)
{
    void *address = dlsym(RTLD_DEFAULT, "TVMFFIErrorSetRaisedFromCStr");
    memcpy(&tvm.set_raised, &address, sizeof address);
    address = dlsym(RTLD_DEFAULT, "TVMFFIEnvGetStream");
    memcpy(&tvm.get_stream, &address, sizeof address);
}

static void *environment_stream(const spops_call_place *place)
{
    enum { CUDA = 2 };
    if (place->backend != SPOPS_BACKEND_CUDA || tvm.get_stream == NULL) return own_stream(place);
    void *stream = tvm.get_stream(CUDA, place->device);
    return stream == NULL ? own_stream(place) : stream;
}

static const char *kind_of(spops_status status)
{
    switch (status) {
    case SPOPS_STATUS_INVALID_ARGUMENT: return "ValueError";
    case SPOPS_STATUS_OUT_OF_MEMORY: return "MemoryError";
    case SPOPS_STATUS_NOT_SUPPORTED: return "NotImplementedError";
    case SPOPS_STATUS_COMM_BROKEN: return "CommBroken"; // where nobody has it a RuntimeError
    default: return "RuntimeError";
    }
}

// ---- Calls --------------------------------------------------------------------------------------

static void give_scratch_back(spops_boxed_call *b)
{
    if (b->borrowed == NULL) return;
    (void)spops_context_set_scratch(b->ctx, NULL, 0);
    if (b->lender != NULL)
        b->lender->take_back(b->lender->user, b->borrowed, b->borrowed_bytes);
    else
        spops_backend_free(b->ctx, b->borrowed, b->borrowed_bytes);
    b->borrowed = NULL;
    b->borrowed_bytes = 0;
}

static spops_status borrow_of_allocator(spops_boxed_call *b, size_t memory)
{
    spops_status status;

    b->ctx->call = b->row->call;
    b->ctx->allocates_captured = true;
    status = spops_backend_alloc(b->ctx, memory, &b->borrowed);
    b->ctx->allocates_captured = false;
    return status;
}

static spops_status borrow_of_lender(spops_boxed_call *b, size_t memory)
{
    b->borrowed = b->lender->lend(b->lender->user, memory);
    if (b->borrowed != NULL) return SPOPS_STATUS_OK;
    return spops_fail(b->ctx, SPOPS_STATUS_OUT_OF_MEMORY,
                      "%s: %zu bytes of scratch are not to be had from the caller", b->row->call,
                      memory);
}

// Scratch from the caller's framework, in the order of the stream: of its allocator while the stream is
// captured, where the graph keeps it as it keeps the framework's own memory, or of the call's lender.
static spops_status borrow_scratch(spops_boxed_call *b, size_t bytes)
{
    const size_t memory = spops_context_scratch_memory(bytes);

    if (b->borrowed_bytes >= memory) return SPOPS_STATUS_OK;
    give_scratch_back(b);
    SPOPS_TRY(b->lender != NULL ? borrow_of_lender(b, memory) : borrow_of_allocator(b, memory));
    b->borrowed_bytes = memory;
    return spops_context_set_scratch(b->ctx, b->borrowed, b->borrowed_bytes);
}

// Of spops_boxed_reserve, where nothing but the bytes is wanted.
#define STATUS_MEASURED ((spops_status)INT32_MAX)

spops_status spops_boxed_reserve(spops_boxed_call *b, size_t bytes)
{
    b->scratch_bytes = bytes;
    if (b->measures) return STATUS_MEASURED;
    if (!b->is_own || bytes == 0) return SPOPS_STATUS_OK;
    if (b->lender != NULL ||
        (b->ctx->allocator.device_alloc != NULL && b->ctx->backend->is_capturing(b->ctx)))
        return borrow_scratch(b, bytes);
    if (b->ctx->scratch_bytes >= bytes) return SPOPS_STATUS_OK;
    return spops_context_reserve(b->ctx, bytes);
}

static void begin(spops_boxed_call *b, spops_context *ctx, const spops_operator *op)
{
    const bool measures = b->measures, asks = b->asks;
    const bool in_order = b->in_order;
    const spops_lender *lender = b->lender;
    const bool has_stream = b->has_stream;
    void *stream = b->stream;
    memset(b, 0, sizeof *b);
    b->measures = measures;
    b->asks = asks;
    b->in_order = in_order;
    b->lender = lender;
    b->has_stream = has_stream;
    b->stream = stream;
    b->ctx = ctx;
    b->row = spops_row_of((spops_operator_id)(op->index));
}

static void finish(const spops_boxed_call *b, spops_value *ret)
{
    if (b->made == NULL) return;
    ret->type = SPOPS_VALUE_POINTER;
    ret->v.p = b->made;
}

// What the row's expression says, of plans and attributes; 0 without one.
static size_t row_scratch(const spops_boxed_call *b)
{
    const spops_row *row = b->row;
    int64_t slots[SPOPS_ROW_MAX_SLOTS];

    if (row->scratch.how == SPOPS_NUMBER_NONE) return 0;
    memcpy(slots, row->initial, sizeof slots);
    for (int i = 0; i < row->num_attributes; ++i)
        slots[i] = b->attributes[i].i;
    for (int i = 0; i < row->num_fields; ++i) {
        const spops_plan *plan = b->args[row->fields[i].arg];
        if (plan == NULL) return 0; // the function says so
        slots[row->fields[i].slot] = row->fields[i].field < 0
                                         ? (int64_t)spops_plan_scratch_bytes(plan)
                                         : spops_plan_field(plan, row->fields[i].field);
    }
    return (size_t)spops_row_eval(&row->scratch, slots);
}

// The same, and what filling a block takes.
static size_t needed_scratch(const spops_boxed_call *b, const spops_plan *into)
{
    const size_t bytes = row_scratch(b), filling = spops_plan_scratch_bytes(into);
    return bytes > filling ? bytes : filling;
}

// The communicator among the inputs, or of a plan there; NULL without one.
static spops_comm *comm_of(const spops_boxed_call *b)
{
    for (int i = 0; i < b->row->num_inputs; ++i) {
        const spops_plan *plan = b->row->args[i].is_plan ? b->args[i] : NULL;
        const void *comm = b->row->args[i].is_comm                   ? b->args[i]
                           : plan != NULL && plan->ops->comm != NULL ? plan->ops->comm(plan)
                                                                     : NULL;
        if (comm != NULL) return (spops_comm *)(uintptr_t)comm;
    }
    return NULL;
}

// What is refused before the function has not come to the other ranks of a communicator: they are told.
static spops_status tell_ranks(const spops_boxed_call *b, spops_status refused)
{
    spops_comm *comm;
    spops_context *ctx = b->ctx;

    if (refused == SPOPS_STATUS_OK || b->row->op->needs_handles == 0) return refused;
    comm = comm_of(b);
    if (comm == NULL) return refused;
    if (ctx == NULL) { // the text is the thread's
        ctx = comm->home;
        (void)spops_fail(ctx, refused, "%s", spops_last_error(NULL));
    }
    refused = spops_comm_refuse_call(ctx, comm, b->row->call, b->row->is_checked, refused);
    return b->ctx != NULL ? refused : spops_fail(NULL, refused, "%s", spops_last_error(ctx));
}

static spops_status check(const spops_boxed_call *b)
{
    return tell_ranks(b, spops_check_boxed(b->ctx, b->row, b->args, b->matrices, b->attributes));
}

static spops_status call_function(spops_boxed_call *b)
{
    if (b->num_blocks > 0) SPOPS_TRY(spops_blocks_attach(b));
    SPOPS_TRY(check(b));
    if (b->into != NULL) SPOPS_TRY(spops_blocks_begin(b));
    if (b->is_own) SPOPS_TRY(spops_boxed_reserve(b, needed_scratch(b, b->into)));
    SPOPS_TRY(functions[b->row->op->index](b));
    return b->into == NULL ? SPOPS_STATUS_OK : spops_blocks_end(b);
}

// The scratch alone: where the row has "*", the operator's function works it out before all else.
static spops_status measure(spops_boxed_call *b)
{
    spops_status status = SPOPS_STATUS_OK;
    const spops_plan *into = NULL;
    int i;

    for (i = 0; i < b->num_blocks && status == SPOPS_STATUS_OK; ++i) {
        spops_plan *plan = NULL;
        status = spops_plan_read_value(b->ctx, b->row->call, &b->blocks[i].value, &plan);
        b->args[b->blocks[i].arg] = plan;
        if (b->row->args[b->blocks[i].arg].is_output) into = plan;
    }
    if (status == SPOPS_STATUS_OK && *b->row->op->scratch == '*') {
        status = functions[b->row->op->index](b);
        if (status == STATUS_MEASURED) status = SPOPS_STATUS_OK;
    } else if (status == SPOPS_STATUS_OK) {
        b->scratch_bytes = needed_scratch(b, into);
    }
    while (--i >= 0)
        spops_plan_destroy_value((spops_plan *)(uintptr_t)b->args[b->blocks[i].arg]);
    return status;
}

// On a context of the library's own.
static spops_status run_own(spops_boxed_call *b, const spops_call_place *place)
{
    spops_own_context *own = NULL;
    spops_status status;

    SPOPS_TRY(spops_own_context_take(place, &own));
    b->ctx = spops_own_context_of(own);
    b->is_own = true;
    b->ctx->makes_in_order = b->in_order && b->ctx->allocator.device_alloc != NULL;
    status = b->measures ? measure(b) : call_function(b);
    give_scratch_back(b);
    if (status != SPOPS_STATUS_OK)
        (void)spops_fail(NULL, status, "%s", spops_last_error(b->ctx));
    else if (b->made != NULL && !b->is_part)
        spops_own_context_keep(own);
    spops_own_context_give(own);
    return status;
}

static spops_status run(spops_boxed_call *b, const spops_operator *op, spops_context *ctx,
                        const spops_value *args, int32_t num_args,
                        void *(*stream_of)(const spops_call_place *))
{
    spops_call_place place = {SPOPS_BACKEND_CPU, 0, NULL};
    spops_status status;

    if (default_device >= 0) place = (spops_call_place){SPOPS_BACKEND_CUDA, default_device, NULL};
    begin(b, ctx, op);
    if (ctx != NULL) {
        place.backend = spops_context_backend(ctx);
        place.device = ctx->info.device;
    }
    status = spops_values_unpack(b, args, num_args, &place);
    if (!b->measures) status = tell_ranks(b, status);
    SPOPS_TRY(status);
    if (ctx != NULL) return b->measures ? measure(b) : call_function(b);
    place.stream = b->has_stream ? b->stream : stream_of(&place);
    if (place.backend == SPOPS_BACKEND_CPU) place.stream = NULL;
    return run_own(b, &place);
}

static spops_status call_from(const spops_operator *op, spops_context *ctx,
                              const spops_lender *lender, const spops_value *args, int32_t num_args,
                              spops_value *ret, void *(*stream_of)(const spops_call_place *))
{
    const spops_value none = {SPOPS_VALUE_NONE, 0, {0}};
    spops_boxed_call b;

    if (ret != NULL) *ret = none;
    SPOPS_REQUIRE(ctx, op != NULL, "call: op is NULL");
    SPOPS_REQUIRE(ctx, ret != NULL, "%s: ret is NULL", op->name);
    b.measures = b.asks = false;
    b.in_order = stream_of == environment_stream;
    b.lender = lender;
    b.has_stream = false;
    b.stream = NULL;
    SPOPS_TRY(run(&b, op, ctx, args, num_args, stream_of));
    finish(&b, ret);
    return SPOPS_STATUS_OK;
}

spops_status spops_call_scratch_bytes(spops_context *ctx, const spops_operator *op,
                                      const spops_value *args, int32_t num_args, size_t *bytes)
{
    spops_boxed_call b;

    SPOPS_REQUIRE(ctx, op != NULL, "call_scratch_bytes: op is NULL");
    SPOPS_REQUIRE(ctx, bytes != NULL, "call_scratch_bytes: bytes is NULL");
    b.measures = true;
    b.asks = false;
    b.in_order = false;
    b.lender = NULL;
    b.has_stream = false;
    b.stream = NULL;
    SPOPS_TRY(run(&b, op, ctx, args, num_args, own_stream));
    *bytes = b.scratch_bytes;
    return SPOPS_STATUS_OK;
}

// A block is measured on a context of the library's own where the caller has none.
static spops_status output_of(spops_boxed_call *b, int index, spops_call_place *place,
                              const spops_size_algebra *algebra, spops_tensor *out, int64_t *shape)
{
    spops_own_context *own = NULL;
    spops_status status;

    if (b->ctx != NULL || shape == NULL || !b->row->args[index].is_plan)
        return spops_boxed_output(b, index, algebra, out, shape);
    place->stream = place->backend == SPOPS_BACKEND_CPU ? NULL : own_stream(place);
    SPOPS_TRY(spops_own_context_take(place, &own));
    b->ctx = spops_own_context_of(own);
    status = spops_boxed_output(b, index, algebra, out, shape);
    if (status != SPOPS_STATUS_OK) (void)spops_fail(NULL, status, "%s", spops_last_error(b->ctx));
    spops_own_context_give(own);
    return status;
}

spops_status spops_call_output(spops_context *ctx, const spops_operator *op,
                               const spops_value *args, int32_t num_args, int32_t output,
                               const spops_size_algebra *algebra, spops_tensor *out, int64_t *shape)
{
    spops_call_place place = {SPOPS_BACKEND_CPU, 0, NULL};
    spops_boxed_call b;

    SPOPS_REQUIRE(ctx, op != NULL, "call_output: op is NULL");
    SPOPS_REQUIRE(ctx, out != NULL, "call_output: out is NULL");
    SPOPS_REQUIRE(ctx, output >= 0 && output < op->num_outputs,
                  "call_output: output is %d, expected 0 to %d", (int)output,
                  (int)op->num_outputs - 1);
    b.measures = false;
    b.asks = true;
    b.in_order = b.has_stream = false;
    b.lender = NULL;
    b.stream = NULL;
    if (default_device >= 0) place = (spops_call_place){SPOPS_BACKEND_CUDA, default_device, NULL};
    begin(&b, ctx, op);
    if (ctx != NULL) {
        place.backend = spops_context_backend(ctx);
        place.device = ctx->info.device;
    }
    SPOPS_TRY(spops_values_unpack(&b, args, num_args, &place));
    return output_of(&b, op->num_inputs + output, &place, algebra, out, shape);
}

spops_status spops_call(spops_context *ctx, const spops_operator *op, const spops_value *args,
                        int32_t num_args, spops_value *ret)
{
    return call_from(op, ctx, NULL, args, num_args, ret, own_stream);
}

spops_status spops_call_lent(const spops_lender *lender, const spops_operator *op,
                             const spops_value *args, int32_t num_args, spops_value *ret)
{
    return call_from(op, NULL, lender, args, num_args, ret, own_stream);
}

// Memory of the caller's, for one call.
typedef struct lent_memory {
    void *memory;
    size_t bytes;
} lent_memory;

static void *lend_memory(void *user, size_t bytes)
{
    const lent_memory *lent = user;
    return bytes <= lent->bytes ? lent->memory : NULL;
}

static void keep_memory(void *user, void *memory, size_t bytes)
{
    (void)user, (void)memory, (void)bytes;
}

spops_status spops_call_on_stream(void *stream, void *scratch, size_t scratch_bytes,
                                  const spops_operator *op, const spops_value *args,
                                  int32_t num_args, spops_value *ret)
{
    const spops_value none = {SPOPS_VALUE_NONE, 0, {0}};
    lent_memory lent = {scratch, scratch_bytes};
    const spops_lender lender = {&lent, lend_memory, keep_memory};
    spops_boxed_call b;

    if (ret != NULL) *ret = none;
    SPOPS_REQUIRE(NULL, op != NULL, "call: op is NULL");
    SPOPS_REQUIRE(NULL, ret != NULL, "%s: ret is NULL", op->name);
    b.measures = b.asks = false;
    b.in_order = false;
    b.lender = scratch == NULL ? NULL : &lender;
    b.has_stream = true;
    b.stream = stream;
    SPOPS_TRY(run(&b, op, NULL, args, num_args, own_stream));
    finish(&b, ret);
    return SPOPS_STATUS_OK;
}

static int call_entry(spops_operator_id id, const spops_value *args, int32_t num_args,
                      spops_value *ret)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    spops_status status;

    (void)pthread_once(&once, find_tvm);
    spops_rows_parse();
    status = call_from(spops_row_of(id)->op, NULL, NULL, args, num_args, ret, environment_stream);
    if (status == SPOPS_STATUS_OK) return 0;
    if (tvm.set_raised != NULL) tvm.set_raised(kind_of(status), spops_last_error(NULL));
    return -1;
}

#define SPOPS_OPERATOR(name, function, types, inputs, outputs, attributes, gradient, scratch, doc) \
    SPOPS_API int __tvm_ffi_##name(void *self, const spops_value *args, int32_t num_args,          \
                                   spops_value *ret);                                              \
    int __tvm_ffi_##name(void *self, const spops_value *args, int32_t num_args, spops_value *ret)  \
    {                                                                                              \
        (void)self;                                                                                \
        return call_entry(SPOPS_OP_##name, args, num_args, ret);                                   \
    }
#include "call/operators.def"
