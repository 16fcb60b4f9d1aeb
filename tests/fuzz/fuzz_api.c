// SPDX-License-Identifier: Apache-2.0
// Fuzzes sequences of public calls: any function, in any order, on two contexts, with arguments that
// are right, or nearly so, and with allocations that fail. A row of the table below is a function, or
// a few that belong together; check_api_rows.sh asks that no public function is missing.
//
// Every array is as long as its matrix or count says, in memory of its own, so that AddressSanitizer
// sees each access after it. A call may refuse what it is given, with a line that says why; what it
// must not do is crash, leak, keep a pointer, or make something and report a failure.
#include <math.h>

#include "fuzz.h"
#include "tests/support/onnx_file.h"

enum {
    NUM_CONTEXTS = 2,
    MOST_CALLS = 48,
    MOST_OBJECTS = 64,
    MOST_BLOCKS = 256,
    MOST_ROWS = 24,
    MOST_INTS = 512,     // of a description
    MOST_BYTES = 1 << 18 // of an argument
};

typedef enum kind {
    SEGMENTS,
    BEV_PLAN,
    COORDS,
    VOXELS,
    DEVOXELS,
    KERNEL_MAP,
    TRIPLETS,
    SPARSECONV,
    POOL,
    PYRAMID,
    NEIGHBORS,
    NEAREST,
    POINT_LEVEL,
    INTERPOLATION,
    POINT_PYRAMID,
    POINTCONV,
    PATCHES,
    BUCKETS,
    PARTITION,
    HALO,
    CHUNK_SUMS
} kind;

typedef struct object {
    kind kind;
    void *ptr;
} object;

typedef struct world {
    fuzz_input input;
    fuzz_memory memory[NUM_CONTEXTS];
    spops_context *contexts[NUM_CONTEXTS];
    spops_context *ctx; // of the call
    object objects[MOST_OBJECTS];
    int num_objects;
    void *blocks[MOST_BLOCKS]; // of the call's arguments
    int num_blocks;
    void *kept[MOST_OBJECTS]; // blocks that plans live in
    int num_kept;
    spops_comm *comm;    // of one rank, for operators that take one; made when it is first wanted
    spops_reduce reduce; // the last that was registered, by either context
} world;

// ---- Choices ------------------------------------------------------------------------------------

static uint32_t pick(world *w, uint32_t n)
{
    if (w->input.at >= w->input.bytes) return 0;
    return w->input.data[w->input.at++] % n;
}

// One in 16 or so; never after the end of the input.
static int rarely(world *w)
{
    return pick(w, 16) == 1;
}

static int32_t hostile_i32(world *w)
{
    static const int32_t values[] = {-1, 0, 1, INT32_MAX, INT32_MIN, INT32_MAX - 1, 65536, 7};
    return values[pick(w, 8)];
}

// A count, mostly n.
static int64_t count_of(world *w, int64_t n)
{
    static const int64_t values[] = {-1, 0, 1, INT32_MAX, INT64_MAX, INT64_MIN, 3, -2};
    return rarely(w) ? values[pick(w, 8)] : n;
}

static void *block(world *w, size_t bytes)
{
    void *p = malloc(bytes > 0 ? bytes : 1);
    FUZZ_REQUIRE(p != NULL && w->num_blocks < MOST_BLOCKS, "no memory for arguments");
    memset(p, 0x3e, bytes); // 0.18 as f32, 1.6 as f16: sums of it are finite
    w->blocks[w->num_blocks++] = p;
    return p;
}

// n numbers below high; now and then one is none. NULL now and then.
static int32_t *ints(world *w, int64_t n, int64_t high)
{
    const size_t count = n > 0 && n < MOST_BYTES / 4 ? (size_t)n : 0;
    int32_t *values = block(w, count * sizeof *values);
    uint32_t x = pick(w, 256);
    if (rarely(w) || n >= MOST_BYTES / 4) return NULL;
    for (size_t i = 0; i < count; ++i) {
        x = x * 1664525u + 1013904223u;
        values[i] = high > 0 ? (int32_t)((x >> 8) % (uint64_t)high) : 0;
    }
    if (count > 0 && rarely(w)) values[pick(w, 256) % count] = hostile_i32(w);
    if (rarely(w)) return (int32_t *)(void *)((char *)values + 1);
    return values;
}

// n + 1 offsets that ascend to total; now and then one does not. The last is none of 2^31 - 1: a plan of so
// many terms is valid, and takes seconds.
static int32_t *ascending(world *w, int64_t n, int64_t total)
{
    int32_t *values = block(w, ((size_t)n + 1) * sizeof *values);
    int64_t at = 0;
    for (int64_t i = 0; i <= n; ++i) {
        values[i] = (int32_t)at;
        at += pick(w, 4);
        if (at > total || i == n - 1) at = total;
    }
    if (rarely(w)) values[pick(w, 256) % (size_t)(n + 1)] = hostile_i32(w);
    if (values[n] > MOST_BYTES) values[n] = -1;
    return rarely(w) ? NULL : values;
}

static int32_t *one_int(world *w, int64_t most)
{
    int32_t *value = block(w, sizeof *value);
    *value = rarely(w) ? hostile_i32(w) : (int32_t)(most > 0 ? pick(w, 256) % (most + 1) : 0);
    return rarely(w) ? NULL : value;
}

static float *vector(world *w, int64_t n)
{
    float *values = block(w, (n > 0 && n < MOST_BYTES / 4 ? (size_t)n : 0) * sizeof *values);
    if (n >= MOST_BYTES / 4) return NULL;
    switch (pick(w, 8)) {
    case 1: return NULL;
    case 2: return rarely(w) ? (float *)(void *)((char *)values + 1) : values;
    default: return values;
    }
}

static int dtype_bits(spops_dtype dtype)
{
    return dtype == SPOPS_DTYPE_F4E2M1 ? 4 : 8 * (int)spops_dtype_bytes(dtype);
}

// Any dtype, or a number that is none and too large to shift a bit by.
static spops_dtype any_dtype(world *w)
{
    const uint32_t n = (uint32_t)pick(w, 10);
    return (spops_dtype)(n < 9 ? n : 77);
}

// a + b of arguments that may be extremes.
static int64_t wrapped(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

// A matrix of rows x cols, mostly; its memory is exactly what it says, where that is a size at all.
static spops_matrix matrix(world *w, int64_t rows, int64_t cols, spops_dtype dtype)
{
    spops_matrix m = spops_matrix_dense(NULL, rows, cols, dtype);
    int64_t elements = 0;
    int shift = 0;
    switch (pick(w, 64)) {
    case 1: m.rows = wrapped(m.rows, 1); break;
    case 2: m.cols = wrapped(m.cols, 1); break;
    case 3: m.rows = wrapped(m.rows, -1); break;
    case 4: m.cols = 0; break;
    case 5: m.dtype = any_dtype(w); break;
    case 6: m.row_stride = wrapped(m.cols, -1); break;
    case 7: m.row_stride = INT64_MAX; break;
    case 8: m.row_stride = INT64_MIN; break;
    case 9: return m; // data NULL
    case 10: shift = 1; break;
    case 11: m.rows = wrapped(~m.rows, 1); break;
    case 12: m.rows = INT64_MAX / 4; break;
    case 13: m.cols = INT32_MAX; break;
    case 14:
    case 15: m.row_stride = wrapped(m.row_stride, 4); break;
    default: break;
    }
    if (m.rows > 0 && m.rows <= 4096 && m.cols > 0 && m.cols <= 4096)
        elements = m.rows == 1 ? m.cols
                   : m.row_stride >= m.cols && m.row_stride <= 4096
                       ? (m.rows - 1) * m.row_stride + m.cols
                       : 1;
    else if (m.rows > 0 && m.cols > 0)
        return m; // larger than there is memory for here
    const size_t bytes = ((size_t)elements * (size_t)dtype_bits(m.dtype) + 7) / 8;
    m.data = (char *)block(w, bytes + (size_t)shift) + shift;
    return m;
}

static spops_dtype float_dtype(world *w)
{
    return (spops_dtype)pick(w, 3);
}

static const spops_matrix *maybe(world *w, const spops_matrix *m)
{
    return pick(w, 4) == 1 ? NULL : m;
}

static void spoil_size(world *w, size_t *struct_size)
{
    static const size_t sizes[] = {0, 4, 8, 12, SIZE_MAX, 24, 1000, 16};
    if (pick(w, 64) == 1) *struct_size = sizes[pick(w, 8)];
}

static int64_t cols_of(world *w)
{
    static const int64_t cols[] = {1, 2, 3, 4, 8, 16, 17, 32};
    return cols[pick(w, 8)];
}

// ---- Objects ------------------------------------------------------------------------------------

static void keep(world *w, kind k, void *ptr)
{
    if (ptr == NULL) return;
    FUZZ_REQUIRE(w->num_objects < MOST_OBJECTS, "too many objects");
    w->objects[w->num_objects++] = (object){k, ptr};
}

static void *find(world *w, kind k)
{
    const int first = w->num_objects > 0 ? (int)(pick(w, 256) % (uint32_t)w->num_objects) : 0;
    for (int i = 0; i < w->num_objects; ++i) {
        const object *o = &w->objects[(first + i) % w->num_objects];
        if (o->kind == k) return pick(w, 32) == 1 ? NULL : o->ptr;
    }
    return NULL;
}

// Segments of any kind of plan, sets of voxels and pyramids, and maps of pyramids.
static const spops_segments *any_segments(world *w)
{
    switch (pick(w, 8)) {
    case 1: return spops_bev_plan_segments(find(w, BEV_PLAN));
    case 2: return spops_voxels_segments(find(w, VOXELS));
    case 3: return spops_devoxels_segments(find(w, DEVOXELS));
    case 4: return spops_pool_segments(find(w, POOL));
    default: return find(w, SEGMENTS);
    }
}

static const spops_coords *any_coords(world *w)
{
    switch (pick(w, 8)) {
    case 1: return spops_voxels_coords(find(w, VOXELS));
    case 2: return spops_pyramid_coords(find(w, PYRAMID), (int32_t)pick(w, 5) - 1);
    default: return find(w, COORDS);
    }
}

static const spops_kernel_map *any_map(world *w)
{
    if (pick(w, 4) == 1)
        return spops_pyramid_map(find(w, PYRAMID), (spops_pyramid_relation)pick(w, 4),
                                 (int32_t)pick(w, 5) - 1);
    return find(w, KERNEL_MAP);
}

static void destroy(const object *o)
{
    switch (o->kind) {
    case SEGMENTS: spops_segments_destroy(o->ptr); break;
    case BEV_PLAN: spops_bev_plan_destroy(o->ptr); break;
    case COORDS: spops_coords_destroy(o->ptr); break;
    case VOXELS: spops_voxels_destroy(o->ptr); break;
    case DEVOXELS: spops_devoxels_destroy(o->ptr); break;
    case KERNEL_MAP: spops_kernel_map_destroy(o->ptr); break;
    case TRIPLETS: spops_triplets_destroy(o->ptr); break;
    case SPARSECONV: spops_sparseconv_destroy(o->ptr); break;
    case POOL: spops_pool_destroy(o->ptr); break;
    case PYRAMID: spops_pyramid_destroy(o->ptr); break;
    case NEIGHBORS: spops_neighbors_destroy(o->ptr); break;
    case NEAREST: spops_nearest_destroy(o->ptr); break;
    case POINT_LEVEL: spops_point_level_destroy(o->ptr); break;
    case INTERPOLATION: spops_interpolation_destroy(o->ptr); break;
    case POINT_PYRAMID: spops_point_pyramid_destroy(o->ptr); break;
    case POINTCONV: spops_pointconv_destroy(o->ptr); break;
    case PATCHES: spops_patches_destroy(o->ptr); break;
    case BUCKETS: spops_buckets_destroy(o->ptr); break;
    case PARTITION: spops_partition_destroy(o->ptr); break;
    case HALO: spops_halo_destroy(o->ptr); break;
    case CHUNK_SUMS: spops_chunk_sums_destroy(o->ptr); break;
    }
}

// ---- Calls --------------------------------------------------------------------------------------

// A call came back: its status is one that a CPU context can give, and a failure has its line.
static int came_back(world *w, const char *call, spops_status status)
{
    const char *line = spops_last_error(w->ctx);
    FUZZ_REQUIRE(status != SPOPS_STATUS_CUDA && status != SPOPS_STATUS_BACKEND_UNAVAILABLE &&
                     strcmp(spops_status_name(status), "?") != 0,
                 "%s: status %d", call, (int)status);
    FUZZ_REQUIRE(status == SPOPS_STATUS_OK || (line[0] != '\0' && strchr(line, '\n') == NULL),
                 "%s: %s without a line", call, spops_status_name(status));
    for (int i = 0; i < NUM_CONTEXTS; ++i)
        w->memory[i].fail_at = 0;
    return status == SPOPS_STATUS_OK;
}
#define CALL(w, call) came_back((w), #call, (call))

// The same of a call that makes something: it is there if and only if the call says so.
#define MAKE(w, kind, made, call)                                                                  \
    do {                                                                                           \
        const int fuzz_ok = CALL(w, call);                                                         \
        FUZZ_REQUIRE(fuzz_ok == ((made) != NULL), "%s", #call);                                    \
        keep((w), (kind), (made));                                                                 \
    } while (0)

// A plan as bytes, and from them, which may be damaged, too few, or not asked for by their kind.
static void save_and_load(world *w, spops_plan_kind saved_as, kind kept, const void *plan,
                          const spops_plan *const *parents, int32_t num_parents)
{
    const spops_plan *any = plan;
    spops_plan *loaded = NULL;
    size_t bytes = 0;
    const int32_t num = rarely(w) ? num_parents - 1 : num_parents;
    if (!CALL(w, spops_plan_save(w->ctx, any, parents, num_parents, NULL, 0, &bytes)) ||
        bytes > MOST_BYTES)
        return;
    char *saved = block(w, bytes);
    if (!CALL(w, spops_plan_save(w->ctx, any, parents, num_parents, saved,
                                 count_of(w, (int64_t)bytes) < 0 ? bytes / 2 : bytes, &bytes)))
        return;
    if (rarely(w)) saved[pick(w, 256) % bytes] ^= 1;
    MAKE(w, kept, loaded,
         spops_plan_load(w->ctx, rarely(w) ? SPOPS_PLAN_COORDS : saved_as, parents, num, saved,
                         bytes, &loaded));
}

// A block for a plan that reserve measured, or too small a one, or none.
static spops_plan_memory *plan_memory(world *w, size_t bytes)
{
    spops_plan_memory *memory = block(w, sizeof *memory);
    *memory = spops_plan_memory_default();
    memory->bytes = rarely(w) ? bytes / 2 : bytes;
    if (bytes == 0 || bytes > FUZZ_MEMORY_LIMIT || w->num_kept == MOST_OBJECTS) return memory;
    memory->block = aligned_alloc(256, (bytes + 255) / 256 * 256);
    FUZZ_REQUIRE(memory->block != NULL, "no memory for a plan");
    memset(memory->block, 0, (bytes + 255) / 256 * 256); // as zero as a calloc's
    w->kept[w->num_kept++] = memory->block;
    spoil_size(w, &memory->struct_size);
    return memory;
}

// RESERVE_IN(w, o, made, call): measure with o.memory, then reserve in a block.
#define RESERVE_IN(w, kind, o, made, call)                                                         \
    do {                                                                                           \
        if (pick((w), 4) == 1) {                                                                   \
            (o).struct_size = sizeof(o), (o).memory = plan_memory((w), 0);                         \
            if (!CALL(w, call)) break;                                                             \
            FUZZ_REQUIRE((made) == NULL, "%s measures", #call);                                    \
            (o).memory = plan_memory((w), (o).memory->bytes);                                      \
            if ((o).memory->block == NULL) break;                                                  \
        }                                                                                          \
        MAKE(w, kind, made, call);                                                                 \
    } while (0)

// ---- Context and names --------------------------------------------------------------------------

static void read_line(void *user, const char *line)
{
    (void)user;
    FUZZ_REQUIRE(line[0] != '\0' && strchr(line, '\n') == NULL, "a line of the log");
}

static void call_context(world *w)
{
    spops_device_info info = spops_device_info_default();
    spops_context_options o = spops_context_options_default();
    spops_context *made = NULL;
    spops_log_set(rarely(w) ? read_line : NULL, NULL);
    switch (pick(w, 8)) {
    case 0: CALL(w, spops_context_reserve(w->ctx, pick(w, 256) * 1000)); break;
    case 1: {
        const size_t bytes = spops_context_scratch_memory(pick(w, 64));
        CALL(w, spops_context_reserve(w->ctx, rarely(w) ? SIZE_MAX : 0));
        CALL(w, spops_context_set_scratch(w->ctx, block(w, bytes), bytes));
        if (rarely(w)) CALL(w, spops_context_set_scratch(w->ctx, NULL, 1));
        CALL(w, spops_context_set_scratch(w->ctx, NULL, 0));
        break;
    }
    case 2: CALL(w, spops_context_wait_sync(w->ctx)); break;
    case 3:
        spoil_size(w, &info.struct_size);
        CALL(w, spops_context_get_device_info(w->ctx, rarely(w) ? NULL : &info));
        break;
    case 4:
        FUZZ_REQUIRE(spops_context_backend(w->ctx) == SPOPS_BACKEND_CPU, "backend");
        FUZZ_REQUIRE(spops_context_stream(NULL) == NULL && spops_context_stream(w->ctx) == NULL,
                     "stream");
        (void)spops_regime_name(spops_context_regime(rarely(w) ? NULL : w->ctx, hostile_i32(w)));
        break;
    case 5:
        o.backend = (spops_backend_kind)hostile_i32(w);
        o.num_threads = hostile_i32(w);
        spoil_size(w, &o.struct_size);
        if (spops_context_create(&o, rarely(w) ? NULL : &made) != SPOPS_STATUS_OK)
            FUZZ_REQUIRE(made == NULL && spops_last_error(NULL)[0] != '\0', "no line");
        spops_context_destroy(made);
        break;
    default:
        (void)spops_dtype_name((spops_dtype)hostile_i32(w));
        (void)spops_dtype_bytes((spops_dtype)hostile_i32(w));
        (void)spops_status_name((spops_status)hostile_i32(w));
        (void)spops_regime_name((spops_regime)hostile_i32(w));
        (void)spops_grouping_name((spops_grouping)hostile_i32(w));
        (void)spops_dataflow_name((spops_dataflow)hostile_i32(w));
        (void)spops_weights_layout_name((spops_weights_layout)hostile_i32(w));
        FUZZ_REQUIRE(spops_version()[0] != '\0' && spops_has_cuda() >= 0, "version");
        break;
    }
}

// One of the next allocations fails, and all after it, until a call came back.
static void fail_allocations(world *w)
{
    for (int i = 0; i < NUM_CONTEXTS; ++i)
        w->memory[i].fail_at = w->memory[i].num_allocs + 1 + pick(w, 12);
}

// ---- Segments -----------------------------------------------------------------------------------

static void segments_options(world *w, spops_segments_options *o, int64_t num_terms)
{
    *o = spops_segments_options_default();
    o->num_rows = count_of(w, 8);
    o->num_weights = count_of(w, 6);
    o->idx = pick(w, 2) ? ints(w, num_terms, 8) : NULL;
    o->weight_idx = pick(w, 2) ? ints(w, num_terms, 6) : NULL;
    if (o->idx == NULL) o->num_rows = count_of(w, 0);
    if (o->weight_idx == NULL) o->num_weights = count_of(w, 0);
    o->max_cols = count_of(w, pick(w, 2) ? 32 : 0);
    o->gradients = (spops_gradients)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 3));
    o->sum_variant = rarely(w) ? hostile_i32(w) : 0;
    spoil_size(w, &o->struct_size);
}

static void make_segments(world *w)
{
    spops_segments_options o;
    spops_segments *made = NULL;
    const int64_t segments = pick(w, 8), terms = pick(w, MOST_ROWS);
    segments_options(w, &o, terms);
    switch (pick(w, 3)) {
    case 0:
        MAKE(w, SEGMENTS, made,
             spops_segments_create(w->ctx, rarely(w) ? -1 : segments,
                                   ascending(w, segments, segments > 0 ? terms : 0), NULL, &made));
        break;
    case 1: {
        int32_t *offsets = ascending(w, segments, segments > 0 ? terms : 0);
        if (offsets == NULL || offsets[segments] != terms) o.idx = o.weight_idx = NULL;
        MAKE(w, SEGMENTS, made, spops_segments_create(w->ctx, segments, offsets, &o, &made));
        break;
    }
    default:
        MAKE(w, SEGMENTS, made,
             spops_segments_create_from_keys(w->ctx, count_of(w, segments), terms,
                                             ints(w, terms, segments), (spops_key_order)pick(w, 3),
                                             rarely(w) ? NULL : &o, &made));
    }
}

static void reserve_segments(world *w)
{
    spops_segments_options o;
    spops_segments *made = NULL;
    segments_options(w, &o, 0);
    o.idx = o.weight_idx = NULL;
    RESERVE_IN(w, SEGMENTS, o, made, spops_segments_reserve(w->ctx, 6, 12, &o, &made));
}

// Any plan's description, or one that is off, and a plan in a block of zeros, which holds one that is
// empty.
static void attach_plan(world *w)
{
    static const kind kinds[] = {
        SEGMENTS,   BEV_PLAN,  KERNEL_MAP,  COORDS,        VOXELS,    DEVOXELS, TRIPLETS,
        SPARSECONV, POINTCONV, POOL,        PYRAMID,       NEIGHBORS, NEAREST,  INTERPOLATION,
        PATCHES,    BUCKETS,   POINT_LEVEL, POINT_PYRAMID, PARTITION, HALO,     CHUNK_SUMS};
    const object *o = &w->objects[w->num_objects > 0 ? pick(w, 256) % (uint32_t)w->num_objects : 0];
    const spops_plan *plan = w->num_objects > 0 && !rarely(w) ? o->ptr : NULL;
    int64_t ints[MOST_INTS];
    int32_t num = 0, num_kinds = 0;
    size_t bytes = 0, scratch = 0;
    spops_plan *made = NULL;
    spops_plan_memory *memory;

    FUZZ_REQUIRE(spops_plan_kinds(&num_kinds) != NULL, "kinds");
    FUZZ_REQUIRE(num_kinds == (int32_t)(sizeof kinds / sizeof kinds[0]), "kinds");
    (void)spops_plan_bytes(plan);
    (void)spops_plan_scratch_bytes(plan);
    if (rarely(w)) {
        // Maps whose sets may be gone are left out.
        spops_plan *const plans[] = {find(w, POOL), (spops_plan *)(uintptr_t)plan};
        if (spops_plan_get_kind(plans[1]) != SPOPS_PLAN_KERNEL_MAP &&
            spops_plan_get_kind(plans[1]) != SPOPS_PLAN_PYRAMID)
            CALL(w, spops_update(w->ctx, plans, (int32_t)pick(w, 3)));
    }
    CALL(w, spops_plan_get_state_sync(w->ctx, plan, rarely(w) ? NULL : ints, (int32_t)pick(w, 64),
                                      &num));
    (void)spops_plan_get_fields(plan, ints, (int32_t)pick(w, (uint32_t)MOST_INTS));
    if (!CALL(w, spops_plan_describe(w->ctx, plan, ints, (int32_t)MOST_INTS, &num))) return;
    if (rarely(w)) ints[pick(w, (uint32_t)num)] = hostile_i32(w);
    if (rarely(w)) num -= 1;
    if (!CALL(w, spops_plan_measure(w->ctx, ints, num, &bytes, &scratch))) return;
    memory = plan_memory(w, bytes);
    if (!CALL(w,
              spops_plan_attach(w->ctx, ints, num, memory->block, memory->bytes, NULL, 0, &made))) {
        FUZZ_REQUIRE(made == NULL, "attach");
        return;
    }
    keep(w, kinds[spops_plan_get_kind(made) - 1], made);
    if (scratch < FUZZ_MEMORY_LIMIT) CALL(w, spops_context_reserve(w->ctx, scratch));
    if (rarely(w)) spops_plan_destroy(NULL);
}

static spops_segments_info info_of(world *w, const spops_segments *segments)
{
    spops_segments_info info = spops_segments_info_default();
    (void)CALL(w, spops_segments_get_info_sync(w->ctx, segments, &info));
    return info;
}

// Scratch of sorts, which the boxed calls of their rows need too.
static void reserve_orders(world *w)
{
    const spops_segments *s = rarely(w) ? NULL : any_segments(w);
    const int64_t cols = rarely(w) ? count_of(w, 8) : cols_of(w), n = count_of(w, 64);
    const spops_dtype t = any_dtype(w);
    const int32_t k = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 9);
    const size_t bytes[] = {spops_segment_sort_scratch_bytes(w->ctx, s, t, cols),
                            spops_segment_topk_scratch_bytes(w->ctx, s, k, t, cols),
                            spops_argsort_scratch_bytes(w->ctx, t, n),
                            spops_unique_scratch_bytes(w->ctx, t, n)};
    const size_t wanted = bytes[pick(w, 4)];
    if (wanted < MOST_BYTES) CALL(w, spops_context_reserve(w->ctx, wanted));
}

static void use_segments(world *w)
{
    spops_segments *s = find(w, SEGMENTS);
    spops_segments_view view = spops_segments_view_default();
    spops_traffic traffic = spops_traffic_default();
    switch (pick(w, 6)) {
    case 0:
        CALL(w, spops_segments_update(w->ctx, s, one_int(w, 14), ints(w, 12, 6),
                                      pick(w, 2) ? ints(w, 12, 8) : NULL,
                                      pick(w, 2) ? ints(w, 12, 6) : NULL));
        break;
    case 1: (void)info_of(w, any_segments(w)); break;
    case 2:
        spoil_size(w, &view.struct_size);
        CALL(w, spops_segments_get_view(w->ctx, any_segments(w), &view));
        break;
    case 3:
        CALL(w, spops_segments_get_traffic_sync(w->ctx, any_segments(w), (spops_dtype)pick(w, 10),
                                                count_of(w, 8), 1, &traffic));
        break;
    case 4:
        CALL(w, spops_context_reserve(w->ctx, spops_segments_scratch_bytes(any_segments(w))));
        reserve_orders(w);
        break;
    default: save_and_load(w, SPOPS_PLAN_SEGMENTS, SEGMENTS, s, NULL, 0);
    }
}

static spops_reduce any_reduce(world *w)
{
    if (rarely(w)) return (spops_reduce)hostile_i32(w);
    return pick(w, 8) == 1 ? w->reduce : (spops_reduce)pick(w, 5);
}

static void reduce_segments(world *w)
{
    const spops_segments *s = any_segments(w);
    const spops_segments_info i = info_of(w, s);
    const spops_dtype t = float_dtype(w), wt = pick(w, 2) ? t : SPOPS_DTYPE_F32;
    const int64_t cols = cols_of(w);
    const spops_matrix x = matrix(w, i.num_rows, cols, t), out = matrix(w, i.num_segments, cols, t);
    const spops_matrix weights = matrix(w, i.num_weights, 1, wt);
    const spops_matrix arg = matrix(w, i.num_segments, cols, SPOPS_DTYPE_I32);
    const spops_matrix gx = matrix(w, i.num_rows, cols, t), gw = matrix(w, i.num_weights, 1, wt);
    const spops_matrix *given = maybe(w, &weights);
    if (pick(w, 2))
        CALL(w, spops_segreduce_execute(w->ctx, s, any_reduce(w), x, given, rarely(w) ? x : out,
                                        pick(w, 4) == 1 ? &arg : NULL));
    else
        CALL(w, spops_segreduce_execute_backward(w->ctx, s, any_reduce(w), out, x, given,
                                                 maybe(w, &gx), given ? maybe(w, &gw) : NULL));
}

static void gather_rows(world *w)
{
    const spops_segments *s = any_segments(w);
    const spops_segments_info i = info_of(w, s);
    const spops_dtype t = float_dtype(w);
    const int64_t cols = cols_of(w);
    const spops_matrix x = matrix(w, i.num_segments, cols, t), out = matrix(w, i.num_rows, cols, t);
    const spops_matrix weights = matrix(w, i.num_weights, 1, t);
    const spops_matrix gx = matrix(w, i.num_segments, cols, t);
    const spops_matrix gw = matrix(w, i.num_weights, 1, t);
    const spops_matrix *given = maybe(w, &weights);
    if (pick(w, 2))
        CALL(w, spops_gather_execute(w->ctx, s, x, given, rarely(w) ? x : out));
    else
        CALL(w, spops_gather_execute_backward(w->ctx, s, out, x, given, maybe(w, &gx),
                                              given ? maybe(w, &gw) : NULL));
}

static void plain_identity(void *user, int64_t n, void *state)
{
    (void)user;
    memset(state, 0, (size_t)n * sizeof(float));
}
static void plain_combine(void *user, int64_t n, void *a, const void *b)
{
    (void)user;
    for (int64_t i = 0; i < n; ++i)
        ((float *)a)[i] += ((const float *)b)[i];
}
static void plain_fold(void *user, int64_t n, void *state, const float *v, int32_t term)
{
    (void)term;
    plain_combine(user, n, state, v);
}
static void plain_finalize(void *user, int64_t n, const void *state, int64_t count, float *out)
{
    (void)user, (void)count;
    memcpy(out, state, (size_t)n * sizeof *out);
}
static void plain_grad(void *user, int64_t n, const float *v, int32_t term, const void *state,
                       int64_t count, float *dv)
{
    (void)user, (void)v, (void)term, (void)state, (void)count;
    for (int64_t i = 0; i < n; ++i)
        dv[i] = 1.0f;
}

static void register_reduction(world *w)
{
    spops_reduce_desc d = {.struct_size = sizeof d,
                           .name = rarely(w) ? NULL : "plain",
                           .state_bytes = rarely(w) ? pick(w, 16) : sizeof(float),
                           .identity = plain_identity,
                           .fold = plain_fold,
                           .combine = plain_combine,
                           .finalize = rarely(w) ? NULL : plain_finalize,
                           .grad = pick(w, 2) ? plain_grad : NULL};
    if (d.state_bytes < sizeof(float)) d.state_bytes = 0;
    spoil_size(w, &d.struct_size);
    CALL(w, spops_reduce_create(w->ctx, &d, rarely(w) ? NULL : &w->reduce));
}

// ---- BEV pooling --------------------------------------------------------------------------------

static const spops_bev_camera ahead = {{20, 0, 16, 0, 20, 8, 0, 0, 1},
                                       {0, 0, 1, 0.5, -1, 0, 0, 0, 0, -1, 0, 1.5, 0, 0, 0, 1},
                                       {1, 0, 0, 0, 1, 0}};

static double hostile_f64(world *w, double value)
{
    static const double values[] = {0.0, -1.0, 1e300, 1e-300, 3.0, 0.5, 1e9, -1e9};
    if (!rarely(w)) return value;
    return pick(w, 4) == 1 ? (double)NAN : values[pick(w, 8)];
}

static spops_bev_options bev_options(world *w)
{
    spops_bev_options o = spops_bev_options_default();
    o.max_cols = count_of(w, 32);
    o.backward = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2);
    o.kernel = (spops_bev_kernel)(rarely(w) ? hostile_i32(w) : 0);
    o.pool_variant = rarely(w) ? hostile_i32(w) : 0;
    spoil_size(w, &o.struct_size);
    return o;
}

static spops_bev_geometry bev_geometry(world *w)
{
    spops_bev_geometry g = spops_bev_geometry_default();
    spops_bev_camera *cameras = block(w, 2 * sizeof *cameras);
    double *depths = block(w, 4 * sizeof *depths);
    g.shape = (spops_bev_shape){1, 1 + (int32_t)pick(w, 2), 1 + (int32_t)pick(w, 4), 2, 3, 4, 3, 1};
    for (int i = 0; i < 4; ++i)
        depths[i] = hostile_f64(w, 1.0 + i);
    for (int i = 0; i < 2; ++i) {
        cameras[i] = ahead;
        if (rarely(w)) cameras[i].intrinsics[pick(w, 9)] = hostile_f64(w, 0.0);
        if (rarely(w)) cameras[i].camera_to_ego[pick(w, 16)] = hostile_f64(w, 0.0);
    }
    if (rarely(w)) (&g.shape.num_batches)[pick(w, 8)] = hostile_i32(w);
    // What was spoiled may name more cameras and depths than there are.
    if (g.shape.num_batches != 1 || g.shape.num_cameras > 2 || g.shape.num_depths > 4)
        g.shape.num_batches = -1;
    g.input_height = rarely(w) ? hostile_i32(w) : 16;
    g.input_width = 32;
    g.depth_start_m = hostile_f64(w, 1.0);
    g.depth_step_m = hostile_f64(w, 1.0);
    g.depths_m = pick(w, 4) == 1 ? depths : NULL;
    g.grid_lower_m[1] = hostile_f64(w, -3.0);
    g.grid_lower_m[2] = -2.0;
    for (int a = 0; a < 3; ++a)
        g.cell_size_m[a] = hostile_f64(w, 2.0);
    g.cameras = rarely(w) ? NULL : cameras;
    spoil_size(w, &g.struct_size);
    return g;
}

static void make_bev_plan(world *w)
{
    spops_bev_options o = bev_options(w);
    const spops_bev_geometry g = bev_geometry(w);
    spops_bev_plan *made = NULL;
    double transforms[24];
    switch (pick(w, 3)) {
    case 0: MAKE(w, BEV_PLAN, made, spops_bev_plan_create(w->ctx, &g, &o, &made)); break;
    case 1: RESERVE_IN(w, BEV_PLAN, o, made, spops_bev_plan_reserve(w->ctx, &g, &o, &made)); break;
    case 2: {
        if (!CALL(w, spops_bev_geometry_get_transforms(w->ctx, &g, transforms))) break;
        if (rarely(w)) transforms[pick(w, 24)] = (double)NAN;
        // As many as the plan's cameras; a plan of two needs both.
        CALL(w, spops_bev_plan_update(w->ctx, g.shape.num_cameras == 2 ? find(w, BEV_PLAN) : NULL,
                                      transforms));
        break;
    }
    default: break;
    }
}

// Out to arrays and back, by way of one of the two forms or of bytes.
static void copy_bev_plan(world *w)
{
    spops_bev_plan *p = find(w, BEV_PLAN), *made = NULL;
    spops_bev_plan_info info = spops_bev_plan_info_default();
    spops_bev_options o = bev_options(w);
    if (!CALL(w, spops_bev_plan_get_info_sync(w->ctx, p, &info))) return;
    FUZZ_REQUIRE(spops_bev_plan_scratch_bytes(p) < FUZZ_MEMORY_LIMIT, "scratch");
    const int64_t n = info.num_points, m = info.num_intervals;
    switch (pick(w, 3)) {
    case 0: {
        spops_bev_ranks_out to = {
            sizeof to,    n, m, ints(w, n, 1), ints(w, n, 1), ints(w, n, 1), ints(w, m, 1),
            ints(w, m, 1)};
        if (!CALL(w, spops_bev_plan_get_ranks_sync(w->ctx, p, &to))) return;
        const spops_bev_ranks ranks = spops_bev_ranks_of(&to);
        if (n > 0 && rarely(w)) to.ranks_bev[pick(w, 256) % n] = hostile_i32(w);
        MAKE(w, BEV_PLAN, made,
             spops_bev_plan_create_from_ranks(w->ctx, &info.shape, &ranks, &o, &made));
        break;
    }
    case 1: {
        spops_bev_intervals_out to = {sizeof to, n, m, ints(w, n, 1), ints(w, 3 * m, 1)};
        if (!CALL(w, spops_bev_plan_get_intervals_sync(w->ctx, p, &to))) return;
        const spops_bev_intervals intervals = spops_bev_intervals_of(&to);
        if (m > 0 && rarely(w)) to.intervals[pick(w, 256) % (3 * m)] = hostile_i32(w);
        MAKE(w, BEV_PLAN, made,
             spops_bev_plan_create_from_intervals(w->ctx, &info.shape, &intervals, &o, &made));
        break;
    }
    default: save_and_load(w, SPOPS_PLAN_BEV_PLAN, BEV_PLAN, p, NULL, 0);
    }
}

static void pool_bev(world *w)
{
    const spops_bev_plan *p = find(w, BEV_PLAN);
    spops_bev_plan_info i = spops_bev_plan_info_default();
    spops_bevpool_args a = spops_bevpool_args_default();
    const int64_t cols = cols_of(w);
    const spops_dtype t = pick(w, 4) == 1 ? (spops_dtype)pick(w, 7) : float_dtype(w);
    const spops_dtype ft = pick(w, 2) ? SPOPS_DTYPE_F32 : t;
    if (!CALL(w, spops_bev_plan_get_info_sync(w->ctx, p, &i))) return;
    a.layout = (spops_bev_layout)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2));
    const int first = a.layout == SPOPS_BEV_CHANNELS_FIRST;
    const int64_t batches = i.shape.num_batches > 0 ? i.shape.num_batches : 1;
    const int64_t rows = first ? batches * cols : i.num_cells;
    const int64_t width = first ? i.num_cells / batches : cols;
    const spops_matrix scales = matrix(w, i.num_features, (cols + 15) / 16, SPOPS_DTYPE_F8E4M3);
    a.depth = matrix(w, i.num_depths, 1, ft);
    a.feat = matrix(w, i.num_features, cols, t);
    a.out = matrix(w, rows, width, ft);
    a.feat_scales = pick(w, 4) == 1 ? &scales : NULL;
    a.feat_scale = pick(w, 4) == 1 ? vector(w, 1) : NULL;
    a.out_scale = pick(w, 4) == 1 ? vector(w, 1) : NULL;
    a.accumulate = (spops_accumulate)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2));
    spoil_size(w, &a.struct_size);
    if (pick(w, 2)) {
        CALL(w, spops_bevpool_execute(w->ctx, p, rarely(w) ? NULL : &a));
        return;
    }
    const spops_matrix gd = matrix(w, i.num_depths, 1, ft), gf = matrix(w, i.num_features, cols, t);
    CALL(w, spops_bevpool_execute_backward(w->ctx, p, a.layout, a.out, a.depth, a.feat,
                                           maybe(w, &gd), maybe(w, &gf)));
}

// ---- Coordinates --------------------------------------------------------------------------------

static spops_coords_options coords_options(world *w)
{
    spops_coords_options o = spops_coords_options_default();
    spops_coords_box *box = block(w, sizeof *box);
    for (int a = 0; a <= SPOPS_MAX_DIMS; ++a) {
        box->lower[a] = a == 0 ? 0 : rarely(w) ? hostile_i32(w) : -4;
        box->upper[a] = a == 0 ? 1 : rarely(w) ? hostile_i32(w) : 8;
    }
    if (rarely(w)) box->lower[0] = 1;
    o.order = (spops_coords_order)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4));
    o.search = (spops_coords_search)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4));
    o.duplicates = (spops_coords_duplicates)(pick(w, 4) > 0);
    o.box = pick(w, 2) ? box : NULL;
    o.max_grid_bytes = 1 << 16;
    spoil_size(w, &o.struct_size);
    return o;
}

static spops_kernel_shape kernel_of(world *w, int32_t dims, int stride)
{
    spops_kernel_shape k = spops_kernel_shape_cube(dims > 0 && dims <= 4 ? dims : 3,
                                                   1 + (int32_t)pick(w, 3), stride, 1);
    if (stride == 1 && pick(w, 2)) k = spops_kernel_shape_cube(k.dims, 3, 1, 1);
    if (rarely(w)) k.dims = hostile_i32(w);
    if (rarely(w)) k.size[pick(w, 4)] = hostile_i32(w);
    if (rarely(w)) k.stride[pick(w, 4)] = hostile_i32(w);
    if (rarely(w)) k.padding[pick(w, 4)] = hostile_i32(w);
    if (rarely(w)) k.dilation[pick(w, 4)] = hostile_i32(w);
    spoil_size(w, &k.struct_size);
    return k;
}

static spops_coords_view view_of(world *w, const spops_coords *coords)
{
    spops_coords_view view = spops_coords_view_default();
    (void)CALL(w, spops_coords_get_view(w->ctx, coords, &view));
    return view;
}

static int32_t dims_of(world *w)
{
    return rarely(w) ? hostile_i32(w) : 2 + (int32_t)pick(w, 2);
}

static int32_t *rows_of(world *w, int64_t n, int32_t dims)
{
    const int64_t columns = dims >= 1 && dims <= 4 ? dims + 1 : 1;
    int32_t *rows = ints(w, n * columns, 6);
    for (int64_t i = 0; rows != NULL && (uintptr_t)rows % 4 == 0 && i < n; ++i)
        if (rows[i * columns] > 1) rows[i * columns] &= 1;
    return rows;
}

static void find_reach(world *w)
{
    enum { MOST_LAYERS = 12 };
    spops_receptive_layer layers[MOST_LAYERS];
    spops_kernel_shape kernels[MOST_LAYERS];
    spops_reach reach[MOST_LAYERS + 1];
    const int32_t dims = 1 + (int32_t)pick(w, 4), n = (int32_t)pick(w, MOST_LAYERS + 1);
    const double sizes[] = {0.5, hostile_f64(w, 1.0), 0.25, 2.0};
    for (int32_t i = 0; i < n; ++i) {
        kernels[i] = kernel_of(w, dims, 1 + (int)pick(w, 3));
        layers[i] = (spops_receptive_layer){(spops_receptive_kind)pick(w, 8), {i, -1}, NULL, {0}};
        if (!rarely(w)) layers[i].kernel = &kernels[i];
        if (layers[i].kind == SPOPS_RECEPTIVE_ROW && pick(w, 2))
            layers[i].from[1] = (int32_t)pick(w, i + 1);
        if (rarely(w)) layers[i].from[pick(w, 2)] = hostile_i32(w);
        if (rarely(w)) layers[i].shift[pick(w, 4)] = hostile_i32(w);
    }
    (void)spops_receptive_field(
        rarely(w) ? hostile_i32(w) : dims, pick(w, 2) ? sizes : NULL, rarely(w) ? NULL : layers, n,
        rarely(w) ? hostile_i32(w) : (int32_t)pick(w, n + 1), rarely(w) ? NULL : reach);
}

static void make_coords(world *w)
{
    if (rarely(w)) find_reach(w);
    spops_coords_options o = coords_options(w);
    const spops_coords *in = any_coords(w), *other = any_coords(w);
    const spops_coords_view v = view_of(w, in);
    const spops_kernel_shape k = kernel_of(w, v.dims, 2);
    spops_coords *made = NULL;
    const int32_t dims = dims_of(w);
    const int64_t n = pick(w, MOST_ROWS);
    (void)spops_kernel_shape_num_taps(&k);
    switch (pick(w, 10)) {
    case 5: {
        const int32_t factor = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4);
        size_t children = 1; // of a row: what a valid factor makes of them
        for (int a = 0; a < v.dims && factor >= 1 && factor <= 7; ++a)
            children *= (size_t)factor;
        const uint8_t *flags = block(w, (size_t)v.max_rows * children);
        MAKE(w, COORDS, made,
             spops_coords_create_children(w->ctx, in, factor, rarely(w) ? NULL : flags, &o, &made));
        break;
    }
    case 6: {
        const uint8_t *flags = block(w, (size_t)v.max_rows);
        MAKE(w, COORDS, made,
             spops_coords_create_grown(w->ctx, in, &k, rarely(w) ? NULL : flags, &o, &made));
        break;
    }
    case 0:
        MAKE(w, COORDS, made, spops_coords_create_downsampled(w->ctx, in, &k, &o, &made));
        break;
    case 1: MAKE(w, COORDS, made, spops_coords_create_upsampled(w->ctx, in, &k, &o, &made)); break;
    case 2: MAKE(w, COORDS, made, spops_coords_create_union(w->ctx, in, other, &o, &made)); break;
    case 3: {
        const uint8_t *flags = block(w, (size_t)v.max_rows);
        MAKE(w, COORDS, made,
             spops_coords_create_pruned(w->ctx, in, rarely(w) ? NULL : flags, &o, &made));
        break;
    }
    case 4:
        RESERVE_IN(w, COORDS, o, made,
                   spops_coords_reserve(w->ctx, dims, 10, count_of(w, 12), &o, &made));
        break;
    default:
        MAKE(w, COORDS, made,
             spops_coords_create(w->ctx, dims, n, rows_of(w, n, dims), rarely(w) ? NULL : &o,
                                 &made));
    }
}

// The capacity of a set, as its description has it; 0 where it has none.
static int64_t max_items_of(world *w, const spops_coords *c)
{
    int64_t ints[MOST_INTS];
    int32_t num = 0;
    if (!CALL(w,
              spops_plan_describe(w->ctx, (const spops_plan *)c, ints, (int32_t)MOST_INTS, &num)))
        return 0;
    return ints[4];
}

static void set_coords(world *w)
{
    spops_coords *c = find(w, COORDS);
    const spops_coords *in = any_coords(w), *other = any_coords(w);
    const spops_coords_view to = view_of(w, c), from = view_of(w, in);
    const spops_kernel_shape k = kernel_of(w, from.dims, 2);
    spops_coords_info info = spops_coords_info_default();
    int64_t num_rows;
    (void)spops_kernel_shape_num_candidates(&k, (int)pick(w, 2));
    switch (pick(w, 10)) {
    case 7:
        CALL(w, spops_coords_update_children(w->ctx, c, in,
                                             rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4),
                                             block(w, (size_t)from.max_rows * 81)));
        break;
    case 8:
        CALL(w, spops_coords_update_grown(w->ctx, c, in, &k, block(w, (size_t)from.max_rows)));
        break;
    case 0: // sets that were not reserved are refused, whatever their rows
        CALL(w, spops_coords_update(w->ctx, c, one_int(w, 14),
                                    rows_of(w, max_items_of(w, c), to.dims)));
        break;
    case 1: CALL(w, spops_coords_update_downsampled(w->ctx, c, in, &k)); break;
    case 2: CALL(w, spops_coords_update_upsampled(w->ctx, c, in, &k)); break;
    case 3: CALL(w, spops_coords_update_union(w->ctx, c, in, other)); break;
    case 4:
        CALL(w, spops_coords_update_pruned(w->ctx, c, in, block(w, (size_t)from.max_rows)));
        break;
    case 5:
        spoil_size(w, &info.struct_size);
        CALL(w, spops_coords_get_info_sync(w->ctx, in, &info));
        break;
    case 6:
        CALL(w, spops_coords_get_num_rows_sync(w->ctx, in, rarely(w) ? NULL : &num_rows));
        break;
    default: break;
    }
}

// n points, or a few more columns than axes.
static spops_matrix points_of(world *w, int64_t n, int64_t cols)
{
    const spops_dtype t = pick(w, 8) == 1 ? SPOPS_DTYPE_F16 : SPOPS_DTYPE_F32;
    const spops_matrix m = matrix(w, n, cols, t);
    const int64_t stride = m.rows > 1 ? m.row_stride : 0;
    if (m.data == NULL || m.dtype != SPOPS_DTYPE_F32 || m.rows > 4096 || m.cols > 4096 ||
        (uintptr_t)m.data % 4 != 0 || (m.rows > 1 && (stride < m.cols || stride > 4096)))
        return m;
    for (int64_t r = 0; r < m.rows; ++r)
        for (int64_t c = 0; c < m.cols; ++c)
            ((float *)m.data)[r * stride + c] = (float)((r * 7 + c * 3) % 11) - 2.0f;
    if (m.rows > 0 && m.cols > 0 && rarely(w)) ((float *)m.data)[0] = pick(w, 2) ? NAN : 1e30f;
    return m;
}

static spops_voxels_options voxels_options(world *w)
{
    spops_voxels_options o = spops_voxels_options_default();
    spops_coords_options *coords = block(w, sizeof *coords);
    *coords = coords_options(w);
    for (int a = 0; a < SPOPS_MAX_DIMS; ++a) {
        o.size_m[a] = hostile_f64(w, 1.5);
        o.origin_m[a] = hostile_f64(w, 0.0);
        o.lower_m[a] = hostile_f64(w, -1.0);
        o.upper_m[a] = hostile_f64(w, 6.0);
    }
    o.coords = pick(w, 4) > 0 ? coords : NULL;
    o.points = (spops_voxel_points)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 3));
    o.gradients = (spops_gradients)pick(w, 3);
    o.max_cols = count_of(w, 32);
    o.dims = rarely(w) ? hostile_i32(w) : 0;
    o.crop = (int32_t)(pick(w, 4) == 1);
    if (o.crop) coords->box = NULL;
    spoil_size(w, &o.struct_size);
    return o;
}

static void make_voxels(world *w)
{
    spops_voxels_options o = voxels_options(w);
    spops_voxels *v = find(w, VOXELS), *made = NULL;
    spops_voxels_view view = spops_voxels_view_default();
    const int64_t n = pick(w, MOST_ROWS);
    const int32_t dims = view_of(w, spops_voxels_coords(v)).dims;
    const spops_matrix points = points_of(w, n, 2 + pick(w, 3));
    const int32_t *batch = pick(w, 2) ? ints(w, points.rows, 2) : NULL;
    float lower[8], upper[8];
    switch (pick(w, 8)) {
    case 0:
        RESERVE_IN(w, VOXELS, o, made, spops_voxels_reserve(w->ctx, dims_of(w), 12, 8, &o, &made));
        break;
    case 1:
        CALL(w, spops_voxels_update(w->ctx, v, one_int(w, 14), points_of(w, 12, dims),
                                    pick(w, 2) ? ints(w, 12, 2) : NULL));
        break;
    case 2:
        spoil_size(w, &view.struct_size);
        CALL(w, spops_voxels_get_view(w->ctx, v, &view));
        break;
    case 3:
        CALL(w, spops_voxels_update_coords(w->ctx, v, one_int(w, 14), points_of(w, 12, dims),
                                           pick(w, 2) ? ints(w, 12, 2) : NULL));
        break;
    case 5:
        CALL(w, spops_voxels_update_segments(w->ctx, v, one_int(w, 14), points_of(w, 12, dims),
                                             pick(w, 2) ? ints(w, 12, 2) : NULL));
        break;
    case 4: {
        const spops_matrix p = points_of(w, n, 1 + pick(w, 6));
        CALL(w, spops_points_get_bounds_sync(w->ctx, p, rarely(w) ? NULL : lower,
                                             p.cols <= 8 ? upper : NULL));
        break;
    }
    default: MAKE(w, VOXELS, made, spops_voxels_create(w->ctx, points, batch, &o, &made));
    }
}

static void make_devoxels(world *w)
{
    spops_devoxels_options o = spops_devoxels_options_default();
    spops_devoxels *d = find(w, DEVOXELS), *made = NULL;
    const spops_coords *coords = any_coords(w);
    const int64_t dims = view_of(w, coords).dims;
    const spops_matrix points = points_of(w, pick(w, MOST_ROWS), dims);
    const int32_t *batch = pick(w, 2) ? ints(w, points.rows, 2) : NULL;
    for (int a = 0; a < SPOPS_MAX_DIMS; ++a) {
        o.size_m[a] = pick(w, 4) == 1 ? 0.0 : hostile_f64(w, 1.5);
        o.origin_m[a] = hostile_f64(w, 0.0);
    }
    o.interpolation =
        (spops_devoxels_interpolation)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2));
    o.missing = (spops_devoxels_missing)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2));
    o.gradients = (spops_gradients)pick(w, 3);
    spoil_size(w, &o.struct_size);
    switch (pick(w, 4)) {
    case 0: MAKE(w, DEVOXELS, made, spops_devoxels_reserve(w->ctx, coords, 12, &o, &made)); break;
    case 1:
        CALL(w, spops_devoxels_update(w->ctx, d, coords, one_int(w, 14), points_of(w, 12, dims),
                                      pick(w, 2) ? ints(w, 12, 2) : NULL));
        break;
    case 2: {
        const spops_matrix weights = spops_devoxels_weights(d);
        const spops_segments_info i = info_of(w, spops_devoxels_segments(d));
        FUZZ_REQUIRE(d == NULL || weights.rows == i.num_weights, "weights");
        break;
    }
    default:
        MAKE(w, DEVOXELS, made, spops_devoxels_create(w->ctx, coords, points, batch, &o, &made));
    }
}

// ---- Kernel maps, and what runs on them ---------------------------------------------------------

static void make_map(world *w)
{
    const spops_coords *in = any_coords(w), *out = pick(w, 2) ? any_coords(w) : NULL;
    const spops_kernel_map_kind of =
        (spops_kernel_map_kind)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 3));
    const spops_kernel_shape k =
        kernel_of(w, view_of(w, in).dims, of == SPOPS_MAP_SUBMANIFOLD ? 1 : 2);
    spops_kernel_map_options o = spops_kernel_map_options_default();
    spops_kernel_map *made = NULL;
    o.contents = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 32);
    o.tile_rows = rarely(w) ? hostile_i32(w) : 0;
    o.max_pairs = count_of(w, 200);
    o.no_symmetry = (int32_t)pick(w, 2);
    spoil_size(w, &o.struct_size);
    switch (pick(w, 8)) {
    case 0:
        RESERVE_IN(w, KERNEL_MAP, o, made,
                   spops_kernel_map_reserve(w->ctx, of, &k, in, out, &o, &made));
        break;
    case 1: CALL(w, spops_kernel_map_update(w->ctx, find(w, KERNEL_MAP), in, out)); break;
    case 2:
        MAKE(w, KERNEL_MAP, made, spops_kernel_map_create_inverse(w->ctx, any_map(w), &o, &made));
        break;
    case 4: {
        const spops_plan *const sets[] = {(const spops_plan *)in, (const spops_plan *)out};
        save_and_load(w, SPOPS_PLAN_KERNEL_MAP, KERNEL_MAP, any_map(w), sets, out == NULL ? 1 : 2);
        break;
    }
    default: MAKE(w, KERNEL_MAP, made, spops_kernel_map_create(w->ctx, of, &k, in, out, &o, &made));
    }
}

static spops_kernel_map_view map_view(world *w, const spops_kernel_map *map)
{
    spops_kernel_map_view view = spops_kernel_map_view_default();
    spops_kernel_map_info info = spops_kernel_map_info_default();
    (void)CALL(w, spops_kernel_map_get_info_sync(w->ctx, map, &info));
    (void)CALL(w, spops_kernel_map_get_view(w->ctx, map, &view));
    return view;
}

static void make_pool(world *w)
{
    spops_pool_options o = spops_pool_options_default();
    spops_pool *p = find(w, POOL), *made = NULL;
    const spops_segments_info i = info_of(w, spops_pool_segments(p));
    const spops_dtype t = float_dtype(w);
    const int64_t cols = cols_of(w);
    const spops_matrix x = matrix(w, i.num_rows, cols, t), out = matrix(w, i.num_segments, cols, t);
    const spops_matrix gx = matrix(w, i.num_rows, cols, t);
    o.gradients = (spops_gradients)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 3));
    o.max_cols = count_of(w, 32);
    spoil_size(w, &o.struct_size);
    switch (pick(w, 5)) {
    case 0:
        MAKE(w, POOL, made,
             spops_pool_create_global(w->ctx, any_coords(w), count_of(w, 2), &o, &made));
        break;
    case 1: CALL(w, spops_pool_update(w->ctx, p)); break;
    case 2: CALL(w, spops_pool_execute(w->ctx, p, any_reduce(w), x, rarely(w) ? x : out)); break;
    case 3: CALL(w, spops_pool_execute_backward(w->ctx, p, any_reduce(w), out, x, gx)); break;
    default: MAKE(w, POOL, made, spops_pool_create(w->ctx, any_map(w), &o, &made));
    }
}

static void make_pyramid(world *w)
{
    spops_pyramid_options o = spops_pyramid_options_default();
    spops_pyramid_info info = spops_pyramid_info_default();
    const spops_coords *finest = any_coords(w);
    spops_pyramid *p = find(w, PYRAMID), *made = NULL;
    const int32_t levels = 1 + (int32_t)pick(w, 3);
    const int32_t dims = view_of(w, finest).dims;
    const spops_kernel_shape within = kernel_of(w, dims, 1), down = kernel_of(w, dims, 2);
    const spops_kernel_shape *withins[3] = {&within, pick(w, 2) ? &within : NULL, &within};
    const spops_kernel_shape *downs[2] = {&down, rarely(w) ? NULL : &down};
    const int64_t rows[3] = {0, count_of(w, 8), count_of(w, 0)};
    const int64_t pairs[3] = {count_of(w, 0), count_of(w, 100), 0};
    o.num_levels = rarely(w) ? hostile_i32(w) : levels;
    if (o.num_levels == 0) o.num_levels = levels; // 5 levels of which 3 kernels are here
    o.contents = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 32);
    o.within = pick(w, 2) && o.num_levels <= 3 ? withins : NULL;
    o.down = pick(w, 2) && o.num_levels <= 3 ? downs : NULL;
    o.order = (spops_coords_order)pick(w, 4);
    o.search = (spops_coords_search)(pick(w, 2) ? 0 : pick(w, 4));
    o.max_rows = pick(w, 2) && o.num_levels <= 3 ? rows : NULL;
    o.max_pairs = pick(w, 2) && o.num_levels <= 3 ? pairs : NULL;
    spoil_size(w, &o.struct_size);
    switch (pick(w, 4)) {
    case 0: MAKE(w, PYRAMID, made, spops_pyramid_reserve(w->ctx, finest, &o, &made)); break;
    case 1: CALL(w, spops_pyramid_update(w->ctx, p)); break;
    case 2:
        spoil_size(w, &info.struct_size);
        CALL(w, spops_pyramid_get_info_sync(w->ctx, p, &info));
        break;
    default: MAKE(w, PYRAMID, made, spops_pyramid_create(w->ctx, finest, &o, &made));
    }
}

static spops_conv_layer layer_of(world *w, int64_t out_channels, spops_matrix *residual)
{
    spops_conv_layer layer = spops_conv_layer_default();
    layer.groups = rarely(w) ? hostile_i32(w) : pick(w, 4) == 1 ? 2 : 0;
    layer.bias = pick(w, 2) ? vector(w, out_channels) : NULL;
    layer.scale = pick(w, 4) == 1 ? vector(w, out_channels) : NULL;
    layer.shift = pick(w, 4) == 1 ? vector(w, out_channels) : NULL;
    layer.residual = pick(w, 4) == 1 ? residual : NULL;
    layer.activation = (spops_activation)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 7));
    layer.activation_slope = (float)hostile_f64(w, 0.1);
    layer.math = (spops_math)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2));
    spoil_size(w, &layer.struct_size);
    return layer;
}

// A plan of a map, with the map's sizes.
typedef struct planned_map {
    const spops_sparseconv *conv;
    int64_t num_in, num_out;
    int32_t num_taps;
} planned_map;
static planned_map planned[MOST_OBJECTS];
static int num_planned;

static void make_sparseconv(world *w)
{
    spops_sparseconv_options o = spops_sparseconv_options_default();
    if (pick(w, 4) == 0) o.crop_independent = rarely(w) ? hostile_i32(w) : 1;
    spops_sparseconv *conv = find(w, SPARSECONV), *made = NULL;
    const spops_kernel_map *map = any_map(w);
    const spops_kernel_map_view view = map_view(w, map);
    spops_conv_choice rows[2];
    spops_plan *all[2] = {(spops_plan *)conv, find(w, SPARSECONV)};
    int64_t num_rows = 0;
    size_t bytes = 0;
    char text[1024];
    memset(rows, 0, sizeof rows);
    o.backward = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2);
    o.dataflow = (spops_dataflow)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4));
    o.max_in_channels = count_of(w, 32);
    o.max_out_channels = count_of(w, 32);
    o.grouping = (spops_grouping)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 5));
    o.epsilon = hostile_f64(w, 0.5);
    o.batch_rows = count_of(w, 10);
    o.tuning = rarely(w) ? rows : NULL;
    o.num_tuning = o.tuning != NULL ? 2 : count_of(w, 0);
    if (rarely(w)) o.tile = hostile_i32(w);
    spoil_size(w, &o.struct_size);
    switch (pick(w, 8)) {
    case 0: CALL(w, spops_sparseconv_update(w->ctx, conv)); break;
    case 1: CALL(w, spops_update(w->ctx, rarely(w) ? NULL : all, (int32_t)pick(w, 3))); break;
    case 2:
        (void)spops_plan_bytes((const spops_plan *)conv);
        CALL(w, spops_context_reserve(w->ctx, spops_sparseconv_scratch_bytes(conv)));
        break;
    case 3: {
        const spops_conv_layer layer = layer_of(w, 8, NULL);
        CALL(w, spops_sparseconv_get_choice(w->ctx, conv, (spops_conv_pass)pick(w, 4),
                                            (spops_dtype)pick(w, 10), count_of(w, 8),
                                            count_of(w, 8), &layer, &rows[0]));
        if (!CALL(w, spops_sparseconv_save_choices(w->ctx, rows, count_of(w, 2) == 2 ? 2 : 0, text,
                                                   sizeof text, &bytes)))
            break;
        if (bytes > 0 && bytes <= sizeof text && rarely(w)) text[pick(w, 256) % bytes] = 'x';
        CALL(w, spops_sparseconv_load_choices(w->ctx, text, bytes <= sizeof text ? bytes : 0, rows,
                                              2, &num_rows));
        break;
    }
    default:
        MAKE(w, SPARSECONV, made, spops_sparseconv_create(w->ctx, map, &o, &made));
        if (made != NULL && num_planned < MOST_OBJECTS)
            planned[num_planned++] =
                (planned_map){made, view.in->max_rows, view.out->max_rows, view.num_taps};
    }
}

// What both convolutions are given.
typedef struct layer_call {
    spops_conv_layer layer;
    spops_matrix residual, x, w, out, grad_x, grad_w;
} layer_call;

static void fill_layer_call(world *w, int64_t num_in, int64_t num_out, int64_t num_taps,
                            layer_call *c)
{
    const spops_dtype t = float_dtype(w), ot = rarely(w) ? SPOPS_DTYPE_F32 : t;
    const int64_t ci = cols_of(w), co = cols_of(w);
    c->residual = matrix(w, num_out, co, ot);
    c->layer = layer_of(w, co, &c->residual);
    const int64_t groups = c->layer.groups == 2 ? 2 : 1;
    c->x = matrix(w, num_in, ci, t);
    c->w = matrix(w, num_taps * (ci / groups), co, t);
    c->out = matrix(w, num_out, co, ot);
    c->grad_x = matrix(w, num_in, ci, t);
    c->grad_w = matrix(w, num_taps * (ci / groups), co, t);
}

static void convolve(world *w)
{
    layer_call c;
    if (num_planned == 0) return;
    const planned_map *p = &planned[pick(w, 256) % (uint32_t)num_planned];
    fill_layer_call(w, p->num_in, p->num_out, p->num_taps, &c);
    if (pick(w, 2))
        CALL(w, spops_sparseconv_execute(w->ctx, p->conv, c.x, c.w, rarely(w) ? NULL : &c.layer,
                                         rarely(w) ? c.x : c.out));
    else
        CALL(w, spops_sparseconv_execute_backward(w->ctx, p->conv, c.out, c.x, c.w, &c.layer,
                                                  maybe(w, &c.grad_x), maybe(w, &c.grad_w), NULL));
}

// ---- Triplets -----------------------------------------------------------------------------------

static void make_triplets(world *w)
{
    spops_triplets_options o = spops_triplets_options_default();
    spops_triplets *t = find(w, TRIPLETS), *made = NULL;
    spops_triplets_shape shape = {6, 8, 3, 12};
    spops_triplets_info info = spops_triplets_info_default();
    o.matrix_order = (spops_key_order)pick(w, 2);
    o.backward = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2);
    o.max_matrix_elements = count_of(w, 1024);
    if (rarely(w)) o.tile = hostile_i32(w);
    spoil_size(w, &o.struct_size);
    if (rarely(w)) (&shape.num_out)[pick(w, 3)] = hostile_i32(w);
    const int32_t *out = pick(w, 4) == 1 ? NULL : ints(w, 12, 6);
    const int32_t *in = pick(w, 4) == 1 ? NULL : ints(w, 12, 8);
    switch (pick(w, 8)) {
    case 0:
        MAKE(w, TRIPLETS, made,
             spops_triplets_create_from_offsets(w->ctx, 3, ascending(w, 3, 12), &o, &made));
        break;
    case 1: MAKE(w, TRIPLETS, made, spops_triplets_reserve(w->ctx, &shape, &o, &made)); break;
    case 2:
        CALL(w, spops_triplets_update(w->ctx, t, one_int(w, 14), out, in, ints(w, 12, 3)));
        break;
    case 3: { // as many offsets as the plan has matrices
        (void)CALL(w, spops_triplets_get_info_sync(w->ctx, t, &info));
        const int64_t k = info.num_matrices < 4096 ? info.num_matrices : 0;
        int32_t *offsets = k < info.num_matrices ? NULL : ascending(w, k, 12);
        CALL(w, spops_triplets_update_offsets(w->ctx, t, offsets, out, in));
        break;
    }
    case 4:
        spoil_size(w, &info.struct_size);
        CALL(w, spops_triplets_get_info_sync(w->ctx, t, &info));
        (void)spops_plan_bytes((const spops_plan *)t);
        CALL(w, spops_context_reserve(w->ctx, spops_triplets_scratch_bytes(t)));
        break;
    default:
        MAKE(w, TRIPLETS, made,
             spops_triplets_create(w->ctx, rarely(w) ? NULL : &shape, out, in, ints(w, 12, 3), &o,
                                   &made));
    }
}

static void multiply(world *w)
{
    const spops_triplets *t = find(w, TRIPLETS);
    spops_triplets_info i = spops_triplets_info_default();
    spops_mvmr_options o = spops_mvmr_options_default();
    (void)CALL(w, spops_triplets_get_info_sync(w->ctx, t, &i));
    o.groups = rarely(w) ? hostile_i32(w) : 0;
    o.diagonal = (int32_t)(pick(w, 8) == 1);
    o.transposed = (int32_t)(pick(w, 4) == 1);
    o.reversed = (int32_t)(pick(w, 4) == 1);
    o.accumulate = (int32_t)(pick(w, 4) == 1);
    o.num_rows = pick(w, 4) == 1 ? one_int(w, 8) : NULL;
    o.math = (spops_math)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2));
    spoil_size(w, &o.struct_size);
    const spops_dtype d = float_dtype(w), ot = rarely(w) ? SPOPS_DTYPE_F32 : d;
    const int64_t ci = cols_of(w), co = o.diagonal ? ci : cols_of(w);
    const int64_t from = o.reversed ? i.num_out : i.num_in, to = o.reversed ? i.num_in : i.num_out;
    const int64_t k = i.num_matrices > 0 && i.num_matrices < 64 ? i.num_matrices : 1;
    const int64_t w_rows = o.diagonal ? k : k * (o.transposed ? co : ci);
    const int64_t w_cols = o.diagonal ? ci : o.transposed ? ci : co;
    const spops_matrix x = matrix(w, from, ci, d), g = matrix(w, to, co, ot);
    const spops_matrix weights = matrix(w, w_rows, w_cols, d), out = matrix(w, to, co, ot);
    const spops_matrix s = matrix(w, i.num_triplets, 1, SPOPS_DTYPE_F32);
    const spops_matrix gx = matrix(w, from, ci, d), gw = matrix(w, w_rows, w_cols, d);
    const spops_matrix gs = matrix(w, i.num_triplets, 1, SPOPS_DTYPE_F32);
    const spops_matrix *scale = pick(w, 4) == 1 ? &s : NULL;
    switch (pick(w, 3)) {
    case 0: CALL(w, spops_vvor_execute(w->ctx, t, x, g, scale, &o, gw)); break;
    case 1:
        CALL(w, spops_mvmr_execute_backward(w->ctx, t, g, x, weights, scale, &o, maybe(w, &gx),
                                            maybe(w, &gw), scale ? maybe(w, &gs) : NULL));
        break;
    default:
        CALL(w, spops_mvmr_execute(w->ctx, t, x, weights, scale, rarely(w) ? NULL : &o,
                                   rarely(w) ? x : out));
    }
}

// ---- Rows alone ---------------------------------------------------------------------------------

static void normalise(world *w)
{
    spops_norm_options o = spops_norm_options_default();
    const spops_dtype t = float_dtype(w);
    const int64_t n = pick(w, MOST_ROWS), c = cols_of(w);
    const spops_matrix x = matrix(w, n, c, t), g = matrix(w, x.rows, x.cols, t);
    const spops_matrix out = matrix(w, x.rows, x.cols, t);
    const int64_t cols = x.cols;
    o.num_rows = pick(w, 4) == 1 ? one_int(w, n) : NULL;
    o.epsilon = (float)hostile_f64(w, 1e-3);
    o.momentum = (float)hostile_f64(w, 0.1);
    o.activation = (spops_activation)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 7));
    o.activation_slope = (float)hostile_f64(w, 0.1);
    o.fixed_statistics = (int32_t)pick(w, 2);
    spoil_size(w, &o.struct_size);
    float *a = vector(w, cols), *b = vector(w, cols), *p = vector(w, cols), *q = vector(w, cols);
    float *gg = vector(w, cols), *gb = vector(w, cols);
    if (pick(w, 4) > 0) CALL(w, spops_context_reserve(w->ctx, spops_norm_scratch_bytes(n + 1, 33)));
    (void)spops_norm_scratch_bytes(count_of(w, 3), count_of(w, 3));
    switch (pick(w, 10)) {
    case 0: CALL(w, spops_batchnorm_statistics_execute(w->ctx, x, &o, a, b, p, q)); break;
    case 1: CALL(w, spops_batchnorm_execute(w->ctx, x, a, b, p, q, &o, rarely(w) ? x : out)); break;
    case 2:
        CALL(w, spops_batchnorm_execute_backward(w->ctx, g, x, a, b, p, q, &o, out, gg, gb));
        break;
    case 3: CALL(w, spops_layernorm_execute(w->ctx, x, a, b, &o, out)); break;
    case 4: CALL(w, spops_rmsnorm_execute(w->ctx, x, a, &o, out)); break;
    case 5: CALL(w, spops_rmsnorm_execute_backward(w->ctx, g, x, a, &o, out, gg)); break;
    default: CALL(w, spops_layernorm_execute_backward(w->ctx, g, x, a, b, &o, out, gg, gb));
    }
}

static void normalise_samples(world *w)
{
    const spops_segments *s = any_segments(w);
    const spops_segments_info i = info_of(w, s);
    const spops_dtype t = float_dtype(w);
    const int64_t cols = cols_of(w), groups = rarely(w) ? hostile_i32(w) : pick(w, 2) ? cols : 1;
    const spops_matrix x = matrix(w, i.num_rows, cols, t), g = matrix(w, i.num_rows, cols, t);
    const spops_matrix out = matrix(w, i.num_rows, cols, t);
    const int64_t all = i.num_segments * (groups > 0 && groups <= cols ? groups : 1);
    spops_norm_options o = spops_norm_options_default();
    o.num_rows = rarely(w) ? one_int(w, 1) : NULL;
    o.epsilon = (float)hostile_f64(w, 1e-3);
    o.activation = (spops_activation)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 7));
    o.fixed_statistics = (int32_t)pick(w, 2);
    spoil_size(w, &o.struct_size);
    float *a = vector(w, all), *b = vector(w, all), *p = vector(w, cols), *q = vector(w, cols);
    float *gg = vector(w, cols), *gb = vector(w, cols);
    if (pick(w, 4) > 0)
        CALL(w, spops_context_reserve(w->ctx, spops_groupnorm_scratch_bytes(s, 33)));
    (void)spops_groupnorm_scratch_bytes(s, count_of(w, 3));
    switch (pick(w, 3)) {
    case 0: CALL(w, spops_groupnorm_statistics_execute(w->ctx, s, (int32_t)groups, x, a, b)); break;
    case 1:
        CALL(w, spops_groupnorm_execute(w->ctx, s, (int32_t)groups, x, a, b, p, q, &o,
                                        rarely(w) ? x : out));
        break;
    default:
        CALL(w, spops_groupnorm_execute_backward(w->ctx, s, (int32_t)groups, g, x, a, b, p, q, &o,
                                                 out, gg, gb));
    }
}

static void activate(world *w)
{
    const spops_dtype t = float_dtype(w);
    const int64_t n = pick(w, MOST_ROWS), c = cols_of(w);
    const spops_matrix x = matrix(w, n, c, t), g = matrix(w, n, c, t), out = matrix(w, n, c, t);
    const spops_activation a = (spops_activation)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 7));
    spops_activation_options o = spops_activation_options_default();
    o.num_rows = pick(w, 4) == 1 ? one_int(w, n) : NULL;
    o.activation_slope = (float)hostile_f64(w, 0.1);
    spoil_size(w, &o.struct_size);
    if (pick(w, 2))
        CALL(w, spops_activation_execute(w->ctx, a, x, &o, rarely(w) ? x : out));
    else
        CALL(w, spops_activation_execute_backward(w->ctx, a, g, x, &o, rarely(w) ? g : out));
}

static void convert_rows(world *w)
{
    static const spops_dtype dtypes[] = {SPOPS_DTYPE_F32,   SPOPS_DTYPE_F16, SPOPS_DTYPE_BF16,
                                         SPOPS_DTYPE_I32,   SPOPS_DTYPE_I64, SPOPS_DTYPE_I32,
                                         SPOPS_DTYPE_F8E4M3};
    const int64_t n = pick(w, MOST_ROWS), c = cols_of(w);
    const spops_dtype from = dtypes[pick(w, 7)], to = dtypes[pick(w, 7)];
    const spops_matrix x = matrix(w, n, c, from), out = matrix(w, n, c, to);
    CALL(w, spops_convert_execute(w->ctx, x, rarely(w) ? x : out));
}

static void multiply_rows(world *w)
{
    const int64_t n = pick(w, MOST_ROWS), ci = cols_of(w), co = cols_of(w);
    const spops_dtype d = float_dtype(w), ot = rarely(w) ? SPOPS_DTYPE_F32 : d;
    spops_conv_layer o = spops_conv_layer_default();
    o.w_transposed = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2);
    const spops_matrix x = matrix(w, n, ci, d), g = matrix(w, n, co, d);
    const spops_matrix weights = matrix(w, o.w_transposed ? co : ci, o.w_transposed ? ci : co, d);
    const spops_matrix out = matrix(w, n, co, ot), residual = matrix(w, n, co, ot);
    const spops_matrix gx = matrix(w, n, ci, ot), gw = matrix(w, weights.rows, weights.cols, ot);
    o.groups = rarely(w) ? hostile_i32(w) : 0;
    o.bias = vector(w, co);
    o.scale = vector(w, co);
    o.shift = vector(w, co);
    o.residual = rarely(w) ? &out : maybe(w, &residual);
    o.activation = (spops_activation)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 7));
    o.activation_slope = (float)hostile_f64(w, 0.1);
    o.math = (spops_math)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2));
    o.x_scales = rarely(w) ? vector(w, 1) : NULL;
    o.num_rows = pick(w, 4) == 1 ? one_int(w, n) : NULL;
    spoil_size(w, &o.struct_size);
    (void)spops_linear_scratch_bytes(w->ctx, count_of(w, 3), count_of(w, 3), count_of(w, 3), 1);
    if (pick(w, 4) > 0)
        CALL(w, spops_linear_reserve(w->ctx, n, ci, co, rarely(w) ? 3 : (int32_t)pick(w, 2)));
    if (pick(w, 2))
        CALL(w,
             spops_linear_execute(w->ctx, x, weights, rarely(w) ? NULL : &o, rarely(w) ? x : out));
    else
        CALL(w, spops_linear_execute_backward(w->ctx, g, x, weights, rarely(w) ? NULL : &o,
                                              maybe(w, &gx), rarely(w) ? &gx : maybe(w, &gw),
                                              vector(w, co)));
}

static void quantise(world *w)
{
    const int64_t n = pick(w, MOST_ROWS), c = cols_of(w) + (int64_t)pick(w, 2);
    const spops_dtype narrow = (spops_dtype)(3 + pick(w, 3)), wide = float_dtype(w);
    const spops_matrix x = matrix(w, n, c, wide), q = matrix(w, n, c, narrow);
    const spops_matrix scales = matrix(w, n, (c + 15) / 16, SPOPS_DTYPE_F8E4M3);
    const spops_matrix *blocks = pick(w, 2) || narrow == SPOPS_DTYPE_F4E2M1 ? &scales : NULL;
    switch (pick(w, 3)) {
    case 0: CALL(w, spops_quantize_scale_execute(w->ctx, x, narrow, vector(w, 1))); break;
    case 1:
        CALL(w, spops_quantize_execute(w->ctx, x, vector(w, 1), q, rarely(w) ? NULL : blocks));
        break;
    default: CALL(w, spops_dequantize_execute(w->ctx, q, vector(w, 1), blocks, x));
    }
}

static void copy_weights(world *w)
{
    const spops_kernel_shape k = kernel_of(w, 2, 1);
    const spops_weights_layout layout =
        (spops_weights_layout)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 18));
    const int64_t in = count_of(w, 4), out = count_of(w, 6), taps = spops_kernel_shape_num_taps(&k);
    const int32_t groups = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 3);
    const spops_dtype t = (spops_dtype)pick(w, 10);
    const size_t bytes =
        taps > 0 && taps < 1000 && in == 4 && out == 6
            ? (size_t)(taps * in * out / (groups == 2 ? 2 : 1)) * spops_dtype_bytes(t)
            : 0;
    const void *from = block(w, bytes);
    void *to = block(w, bytes);
    // What is not a size here is one that is refused, or needs no memory.
    if (bytes == 0 && in > 0 && out > 0 && taps > 0) return;
    if (pick(w, 2))
        CALL(w, spops_weights_load(w->ctx, layout, &k, groups, in, out, t, rarely(w) ? NULL : from,
                                   to));
    else
        CALL(w, spops_weights_save(w->ctx, layout, &k, groups, in, out, t, from,
                                   rarely(w) ? NULL : to));
}

// ---- Points -------------------------------------------------------------------------------------

static spops_point_cloud cloud_of(world *w, int64_t n)
{
    spops_point_cloud cloud = {points_of(w, n, 3), NULL, 0};
    if (pick(w, 2)) {
        cloud.num_samples = 2;
        cloud.offsets = ascending(w, 2, cloud.points.rows);
    }
    if (rarely(w) && cloud.offsets == NULL) cloud.num_samples = hostile_i32(w);
    return cloud;
}

static void make_neighbors(world *w)
{
    spops_neighbors_options o = spops_neighbors_options_default();
    const spops_point_cloud outputs = cloud_of(w, pick(w, MOST_ROWS));
    const spops_point_cloud inputs = cloud_of(w, pick(w, MOST_ROWS));
    const spops_neighbors_capacity shape = {count_of(w, 12), count_of(w, 12), count_of(w, 2),
                                            count_of(w, 200)};
    spops_neighbors_view view = spops_neighbors_view_default();
    spops_neighbors_info info = spops_neighbors_info_default();
    spops_neighbors *n = find(w, NEIGHBORS), *made = NULL;
    o.radius_m = (float)hostile_f64(w, 2.0);
    o.metric = (spops_metric)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2));
    o.taps = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4);
    o.tap_size_m = (float)hostile_f64(w, 1.0);
    o.contents = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4);
    spoil_size(w, &o.struct_size);
    const spops_point_cloud *to = pick(w, 2) ? &outputs : NULL;
    switch (pick(w, 8)) {
    case 0:
        MAKE(w, NEIGHBORS, made,
             spops_neighbors_reserve(w->ctx, &shape, (int32_t)pick(w, 2), &o, &made));
        break;
    case 1: CALL(w, spops_neighbors_update(w->ctx, n, to, rarely(w) ? NULL : &inputs)); break;
    case 2:
        spoil_size(w, &view.struct_size);
        CALL(w, spops_neighbors_get_view(w->ctx, n, &view));
        break;
    case 3:
        spoil_size(w, &info.struct_size);
        CALL(w, spops_neighbors_get_info_sync(w->ctx, n, &info));
        break;
    default:
        MAKE(w, NEIGHBORS, made,
             spops_neighbors_create(w->ctx, to, rarely(w) ? NULL : &inputs, &o, &made));
    }
}

static void sample_farthest(world *w, const spops_point_cloud *cloud)
{
    const int64_t samples = cloud->offsets == NULL ? 1 : 2, n = cloud->points.rows;
    const int32_t count = rarely(w) ? hostile_i32(w) : 1 + (int32_t)pick(w, 9);
    const size_t elements = count > 0 && count <= 9 ? (size_t)(samples * count) : 0;
    int32_t *rows = block(w, elements * sizeof *rows);
    float *distances2 = block(w, elements * sizeof *distances2);

    (void)spops_farthest_scratch_bytes(w->ctx, count_of(w, 12), count_of(w, 3));
    if (pick(w, 4) > 0 && n < 100)
        CALL(w, spops_context_reserve(w->ctx, spops_farthest_scratch_bytes(w->ctx, n, samples)));
    CALL(w, spops_farthest_execute(w->ctx, rarely(w) ? NULL : cloud, elements > 0 ? count : -1,
                                   pick(w, 2) ? ints(w, samples, 12) : NULL,
                                   rarely(w) ? NULL : rows, pick(w, 2) ? distances2 : NULL));
}

static void make_nearest(world *w)
{
    const spops_point_cloud cloud = cloud_of(w, pick(w, MOST_ROWS));
    const int64_t capacity = pick(w, 2) ? cloud.points.rows : count_of(w, 12);
    spops_nearest *n = find(w, NEAREST), *made = NULL;
    const int32_t count = rarely(w) ? hostile_i32(w) : 1 + (int32_t)pick(w, 4);
    const int64_t most = cloud.points.rows > 0 && cloud.points.rows < 100 ? cloud.points.rows : 0;
    const size_t elements = count > 0 && count <= SPOPS_MAX_NEAREST ? (size_t)(most * count) : 0;
    int32_t *rows = block(w, elements * sizeof *rows);
    float *distances = block(w, elements * sizeof *distances);
    switch (pick(w, 6)) {
    case 0:
        MAKE(w, NEAREST, made,
             spops_nearest_reserve(w->ctx, capacity, count_of(w, 3), NULL, &made));
        break;
    case 1: CALL(w, spops_nearest_update(w->ctx, n, rarely(w) ? NULL : &cloud)); break;
    case 2:
    case 3:
        MAKE(w, NEAREST, made, spops_nearest_create(w->ctx, rarely(w) ? NULL : &cloud, &made));
        break;
    default:
        CALL(w, spops_nearest_execute(w->ctx, n, &cloud, count, rarely(w) ? NULL : rows,
                                      pick(w, 2) ? distances : NULL));
        sample_farthest(w, &cloud);
    }
}

static void make_point_level(world *w)
{
    spops_point_level_options o = spops_point_level_options_default();
    spops_point_level_view view = spops_point_level_view_default();
    spops_point_level_info info = spops_point_level_info_default();
    const spops_point_cloud cloud = cloud_of(w, pick(w, MOST_ROWS));
    const spops_point_level_capacity shape = {
        .max_fine = pick(w, 2) ? cloud.points.rows : count_of(w, 12),
        .max_coarse = count_of(w, 12),
        .num_samples = pick(w, 2) ? 1 : count_of(w, 3),
        .lower_m = {-5.0, rarely(w) ? hostile_f64(w, 1.0) : -5.0, -5.0},
        .upper_m = {5.0, 5.0, rarely(w) ? hostile_f64(w, 1.0) : 5.0}};
    spops_point_level *level = find(w, POINT_LEVEL), *made = NULL;
    o.size_m = hostile_f64(w, 1.0);
    o.origin_m[0] = rarely(w) ? hostile_f64(w, 1.0) : 0.0;
    o.keep = (spops_point_keep)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4));
    o.gradients = (spops_gradients)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2));
    spoil_size(w, &o.struct_size);
    switch (pick(w, 5)) {
    case 0:
        spoil_size(w, &view.struct_size);
        spoil_size(w, &info.struct_size);
        (void)spops_point_level_cloud(level);
        (void)spops_point_level_kept(level);
        (void)spops_point_level_voxels(level);
        CALL(w, spops_point_level_get_view(w->ctx, level, &view));
        CALL(w, spops_point_level_get_info_sync(w->ctx, level, &info));
        break;
    case 1:
        MAKE(w, POINT_LEVEL, made,
             spops_point_level_reserve(w->ctx, rarely(w) ? NULL : &shape, &o, &made));
        break;
    case 2: CALL(w, spops_point_level_update(w->ctx, level, rarely(w) ? NULL : &cloud)); break;
    default:
        MAKE(w, POINT_LEVEL, made,
             spops_point_level_create(w->ctx, rarely(w) ? NULL : &cloud, &o, &made));
    }
}

static void make_interpolation(world *w)
{
    spops_interpolation_options o = spops_interpolation_options_default();
    const spops_point_cloud from = cloud_of(w, pick(w, MOST_ROWS));
    const spops_point_cloud to = cloud_of(w, pick(w, MOST_ROWS));
    const int64_t max_from = pick(w, 2) ? from.points.rows : count_of(w, 12);
    const int64_t max_to = pick(w, 2) ? to.points.rows : count_of(w, 12);
    spops_interpolation *it = find(w, INTERPOLATION), *made = NULL;
    o.count = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 5);
    spoil_size(w, &o.struct_size);
    (void)spops_interpolation_segments(it);
    (void)spops_interpolation_weights(it);
    switch (pick(w, 4)) {
    case 0:
        MAKE(w, INTERPOLATION, made,
             spops_interpolation_reserve(w->ctx, max_from, max_to, count_of(w, 3), &o, &made));
        break;
    case 1:
        CALL(w, spops_interpolation_update(w->ctx, it, rarely(w) ? NULL : &from,
                                           rarely(w) ? NULL : &to));
        break;
    default:
        MAKE(w, INTERPOLATION, made,
             spops_interpolation_create(w->ctx, rarely(w) ? NULL : &from, rarely(w) ? NULL : &to,
                                        &o, &made));
    }
}

static void make_point_pyramid(world *w)
{
    spops_point_pyramid_options o = spops_point_pyramid_options_default();
    const spops_point_cloud cloud = cloud_of(w, pick(w, MOST_ROWS));
    const spops_point_pyramid_capacity shape = {
        .max_rows = {pick(w, 2) ? cloud.points.rows : count_of(w, 12), count_of(w, 12)},
        .max_pairs = {count_of(w, 200)},
        .num_samples = pick(w, 2) ? 1 : count_of(w, 3),
        .lower_m = {-5.0, -5.0, rarely(w) ? hostile_f64(w, 1.0) : -5.0},
        .upper_m = {5.0, 5.0, 5.0}};
    spops_point_pyramid_info info = spops_point_pyramid_info_default();
    spops_point_pyramid *p = find(w, POINT_PYRAMID);
    const int32_t level = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 3);
    spops_point_pyramid *made = NULL;
    o.num_levels = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4);
    o.tap_size_m = (float)hostile_f64(w, 0.5);
    o.radius_taps = rarely(w) ? (float)hostile_f64(w, 2.0) : 0.0f;
    o.metric = (spops_metric)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2));
    o.taps = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4);
    o.cover = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2);
    spoil_size(w, &o.struct_size);
    (void)spops_point_pyramid_cloud(p, level);
    (void)spops_point_pyramid_level(p, level);
    (void)spops_point_pyramid_within(p, level);
    (void)spops_point_pyramid_down(p, level);
    switch (pick(w, 4)) {
    case 0:
        MAKE(w, POINT_PYRAMID, made,
             spops_point_pyramid_reserve(w->ctx, rarely(w) ? NULL : &shape, &o, &made));
        break;
    case 1: CALL(w, spops_point_pyramid_update(w->ctx, p, rarely(w) ? NULL : &cloud)); break;
    case 2:
        spoil_size(w, &info.struct_size);
        CALL(w, spops_point_pyramid_get_info_sync(w->ctx, p, &info));
        break;
    default:
        MAKE(w, POINT_PYRAMID, made,
             spops_point_pyramid_create(w->ctx, rarely(w) ? NULL : &cloud, &o, &made));
    }
}

// A point convolution with its neighbours' sizes.
typedef struct planned_cloud {
    const spops_pointconv *conv;
    int64_t num_in, num_out;
    int32_t num_taps;
} planned_cloud;
static planned_cloud planned_clouds[MOST_OBJECTS];
static int num_planned_clouds;

static void make_pointconv(world *w)
{
    spops_pointconv_options o = spops_pointconv_options_default();
    spops_neighbors_view view = spops_neighbors_view_default();
    const spops_neighbors *n = find(w, NEIGHBORS);
    spops_pointconv *conv = find(w, POINTCONV), *made = NULL;
    spops_conv_choice choice;
    o.backward = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2);
    o.dataflow = (spops_dataflow)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2));
    o.max_in_channels = count_of(w, 32);
    o.max_out_channels = count_of(w, 32);
    o.sums = (spops_pointconv_sums)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2));
    o.quantized = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2);
    o.crop_independent = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2);
    if (rarely(w)) o.tile = hostile_i32(w);
    spoil_size(w, &o.struct_size);
    switch (pick(w, 4)) {
    case 0: CALL(w, spops_pointconv_update(w->ctx, conv)); break;
    case 1:
        (void)spops_plan_bytes((const spops_plan *)conv);
        CALL(w, spops_pointconv_get_choice(w->ctx, conv, (spops_conv_pass)pick(w, 4),
                                           (spops_dtype)pick(w, 10), count_of(w, 8), count_of(w, 8),
                                           NULL, &choice));
        CALL(w, spops_context_reserve(w->ctx, spops_pointconv_scratch_bytes(conv)));
        break;
    default:
        (void)CALL(w, spops_neighbors_get_view(w->ctx, n, &view));
        MAKE(w, POINTCONV, made, spops_pointconv_create(w->ctx, n, &o, &made));
        if (made != NULL)
            planned_clouds[num_planned_clouds++] =
                (planned_cloud){made, view.in->max_rows, view.out->max_rows, view.num_taps};
    }
}

static void convolve_points(world *w)
{
    layer_call c;
    if (num_planned_clouds == 0) return;
    const planned_cloud *p = &planned_clouds[pick(w, 256) % (uint32_t)num_planned_clouds];
    fill_layer_call(w, p->num_in, p->num_out, p->num_taps, &c);
    if (pick(w, 2))
        CALL(w, spops_pointconv_execute(w->ctx, p->conv, c.x, c.w, rarely(w) ? NULL : &c.layer,
                                        rarely(w) ? c.x : c.out));
    else
        CALL(w, spops_pointconv_execute_backward(w->ctx, p->conv, c.out, c.x, c.w, &c.layer,
                                                 maybe(w, &c.grad_x), maybe(w, &c.grad_w), NULL));
}

static void pool_buckets(world *w)
{
    const spops_buckets *b = find(w, BUCKETS);
    spops_pool_options o = spops_pool_options_default();
    spops_pool *p = find(w, POOL), *made = NULL;
    (void)spops_pool_sample_offsets(p);
    o.gradients = (spops_gradients)pick(w, 3);
    o.max_cols = count_of(w, 4);
    MAKE(w, POOL, made,
         spops_pool_create_from_buckets(
             w->ctx, b, rarely(w) ? hostile_i32(w) : 1 + (int32_t)pick(w, 5), &o, &made));
}

static void make_buckets(world *w)
{
    const spops_point_cloud cloud = cloud_of(w, pick(w, 2) ? 12 : pick(w, MOST_ROWS));
    spops_buckets_options o = spops_buckets_options_default();
    spops_buckets_view view = spops_buckets_view_default();
    spops_buckets_info info = spops_buckets_info_default();
    spops_buckets *b = find(w, BUCKETS), *made = NULL;
    o.bucket_rows = rarely(w) ? hostile_i32(w) : 1 + (int32_t)pick(w, 8);
    o.num_buckets = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 8);
    o.num_rounds = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 5);
    o.bits = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 17);
    for (int r = 0; r < SPOPS_MAX_BUCKET_ROUNDS; ++r) {
        o.hashes[r] = (spops_bucket_hash)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4));
        o.steps[r][r % 3] = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 3) - 1;
    }
    for (int a = 0; a < 3; ++a) {
        o.size_m[a] = hostile_f64(w, 0.5);
        o.origin_m[a] = hostile_f64(w, 0.0);
    }
    spoil_size(w, &o.struct_size);
    switch (pick(w, 8)) {
    case 0:
        MAKE(w, BUCKETS, made,
             spops_buckets_reserve(w->ctx, count_of(w, 12), count_of(w, 2), &o, &made));
        break;
    case 1:
    case 2: CALL(w, spops_buckets_update(w->ctx, b, rarely(w) ? NULL : &cloud)); break;
    case 3:
        spoil_size(w, &view.struct_size);
        CALL(w, spops_buckets_get_view(w->ctx, b, &view));
        break;
    case 4:
        spoil_size(w, &info.struct_size);
        CALL(w, spops_buckets_get_info_sync(w->ctx, b, &info));
        break;
    default:
        MAKE(w, BUCKETS, made,
             spops_buckets_create(w->ctx, rarely(w) ? NULL : &cloud, rarely(w) ? NULL : &o, &made));
    }
}

// Rows that offsets claim more of than there are would be the caller's lie.
static const int32_t *rows_for(const int32_t *offsets, int64_t n, const int32_t *rows,
                               int64_t entries)
{
    const int readable = offsets != NULL && (uintptr_t)offsets % 4 == 0 && n >= 0;
    return readable && offsets[n] > entries ? NULL : rows;
}

static spops_patch_grid grid_of(world *w)
{
    spops_patch_grid g = spops_patch_grid_default();
    for (int a = 0; a < 3; ++a) {
        g.window[a] = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 6);
        g.shift[a] = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 6) - 2;
        g.axes[a] = rarely(w) ? hostile_i32(w) : 0;
    }
    g.set_rows = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 6);
    g.even = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2);
    g.across = pick(w, 4) == 1;
    g.borrow = pick(w, 4) == 1;
    g.bits = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 17);
    g.size_m[0] = hostile_f64(w, 0.5);
    g.origin_m[1] = hostile_f64(w, 0.0);
    spoil_size(w, &g.struct_size);
    return g;
}

// One cloud and order, for two plans; the second one another, none, or the same.
static void update_at_once(world *w, spops_patches *p, const spops_point_cloud *cloud,
                           const spops_patch_order *order)
{
    spops_patches *plans[2] = {p, find(w, PATCHES)};
    const spops_point_cloud clouds[2] = {*cloud, *cloud};
    const spops_patch_order orders[2] = {*order, *order};
    const int64_t num = rarely(w) ? count_of(w, 3) : 1 + pick(w, 2);
    const size_t bytes =
        spops_patches_orders_scratch_bytes((const spops_patches *const *)plans, num > 2 ? 2 : num);
    if (pick(w, 4) > 0) CALL(w, spops_context_reserve(w->ctx, bytes));
    CALL(w, spops_patches_update_from_orders(w->ctx, num > 2 ? -1 : num, rarely(w) ? NULL : plans,
                                             rarely(w) ? NULL : clouds, rarely(w) ? NULL : orders));
}

static void make_patches(world *w)
{
    const int64_t n = 1 + pick(w, 4), queries = pick(w, MOST_ROWS), keys = pick(w, MOST_ROWS);
    const int32_t same = (int32_t)pick(w, 2);
    spops_patches_capacity shape = spops_patches_capacity_default();
    spops_patches_view view = spops_patches_view_default();
    spops_patches_info info = spops_patches_info_default();
    spops_patches *p = find(w, PATCHES), *made = NULL;
    spops_patch_lists lists = {count_of(w, n), ascending(w, n, queries), NULL, NULL, NULL, 0};
    if (pick(w, 2)) { // rows that are there once, or not
        int32_t *rows = ints(w, queries, MOST_ROWS);
        for (int64_t e = 0; rows != NULL && (uintptr_t)rows % 4 == 0 && e < queries; ++e)
            if (pick(w, 2)) rows[e] = (int32_t)e;
        lists.query_rows = rows;
    }
    if (!same) {
        lists.key_offsets = ascending(w, n, keys);
        lists.key_rows = ints(w, keys, MOST_ROWS);
        if (pick(w, 2)) lists.num_key_rows = count_of(w, MOST_ROWS);
    }
    if (lists.num_patches > n) lists.num_patches = n;
    lists.query_rows = rows_for(lists.query_offsets, lists.num_patches, lists.query_rows, queries);
    lists.key_rows = rows_for(lists.key_offsets, lists.num_patches, lists.key_rows, keys);
    shape.num_rows = count_of(w, MOST_ROWS);
    shape.max_patches = count_of(w, 4);
    shape.max_queries = count_of(w, MOST_ROWS);
    shape.max_keys = same ? 0 : count_of(w, MOST_ROWS);
    shape.same = rarely(w) ? hostile_i32(w) : same;
    shape.max_samples = count_of(w, 2);
    if (!same && pick(w, 2)) shape.num_key_rows = count_of(w, MOST_ROWS);
    const spops_point_cloud cloud = cloud_of(w, pick(w, 2) ? MOST_ROWS : pick(w, MOST_ROWS));
    const spops_buckets *buckets = find(w, BUCKETS);
    spops_patch_order order = spops_patch_order_default();
    spops_patch_window window = spops_patch_window_default();
    order.patch_rows = rarely(w) ? hostile_i32(w) : 1 + (int32_t)pick(w, 8);
    order.borrow = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2);
    order.curve = (spops_patch_curve)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4));
    order.bits = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 17);
    order.size_m[0] = hostile_f64(w, 0.5);
    order.origin_m[1] = hostile_f64(w, 0.0);
    if (pick(w, 4) == 1) order.order = ints(w, cloud.points.rows, cloud.points.rows);
    window.buckets = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4);
    window.stride = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4);
    window.shift = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4) - 1;
    window.in_places = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2);
    spoil_size(w, &shape.struct_size);
    spoil_size(w, &order.struct_size);
    spoil_size(w, &window.struct_size);
    switch (pick(w, 16)) {
    case 0: MAKE(w, PATCHES, made, spops_patches_reserve(w->ctx, &shape, &made)); break;
    case 1:
    case 2:
        CALL(w, spops_patches_update(w->ctx, p, pick(w, 2) ? one_int(w, n) : NULL,
                                     rarely(w) ? NULL : &lists));
        break;
    case 3:
        spoil_size(w, &view.struct_size);
        CALL(w, spops_patches_get_view(w->ctx, p, &view));
        break;
    case 4:
        spoil_size(w, &info.struct_size);
        CALL(w, spops_patches_get_info_sync(w->ctx, p, &info));
        break;
    case 5:
        MAKE(w, PATCHES, made,
             spops_patches_create_from_order(w->ctx, rarely(w) ? NULL : &cloud,
                                             rarely(w) ? NULL : &order, &made));
        break;
    case 6:
        if (pick(w, 2))
            CALL(w, spops_patches_update_from_order(w->ctx, p, &cloud, &order));
        else
            update_at_once(w, p, &cloud, &order);
        break;
    case 7:
        MAKE(w, PATCHES, made,
             spops_patches_create_from_buckets(w->ctx, buckets, rarely(w) ? NULL : &window, &made));
        break;
    case 8: CALL(w, spops_patches_update_from_buckets(w->ctx, p, buckets, &window)); break;
    case 9: {
        const spops_patch_grid grid = grid_of(w);
        MAKE(w, PATCHES, made,
             spops_patches_create_from_grid(w->ctx, &cloud, rarely(w) ? NULL : &grid, &made));
        break;
    }
    case 10: {
        const spops_patch_grid grid = grid_of(w);
        CALL(w, spops_patches_update_from_grid(w->ctx, p, rarely(w) ? NULL : &cloud, &grid));
        break;
    }
    default:
        MAKE(
            w, PATCHES, made,
            spops_patches_create(w->ctx, count_of(w, MOST_ROWS), rarely(w) ? NULL : &lists, &made));
    }
}

// What the options of attention point to.
typedef struct attention_choice {
    spops_attention_options options;
    spops_attention_rotary rotary;
    spops_attention_bias bias;
    spops_attention_norm norm;
} attention_choice;

static void choose_attention(world *w, attention_choice *c, const spops_patches_info *info,
                             int32_t heads, int32_t kv_heads, int64_t dim, int64_t range)
{
    spops_attention_options *o = &c->options;
    const int64_t n = info->num_rows, m = info->num_key_rows;
    const spops_dtype coords = pick(w, 2) ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_I32;
    *o = spops_attention_options_default();
    c->rotary = spops_attention_rotary_default();
    c->bias = spops_attention_bias_default();
    c->norm = spops_attention_norm_default();
    o->heads = rarely(w) ? hostile_i32(w) : heads;
    o->kv_heads = rarely(w) ? hostile_i32(w) : kv_heads == heads && pick(w, 2) ? 0 : kv_heads;
    o->scale = (float)hostile_f64(w, 0.5);
    if (rarely(w)) o->qkv_head_stride = (int64_t)pick(w, 3) - 1;
    if (rarely(w)) o->o_head_stride = (int64_t)pick(w, 3) - 1;
    o->math = (spops_math)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2));
    if (rarely(w)) o->tile = hostile_i32(w);
    c->rotary.coords = matrix(w, n, 3, coords);
    if (n != m || pick(w, 2)) c->rotary.key_coords = matrix(w, m, 3, coords);
    c->rotary.base = (float)hostile_f64(w, 100.0);
    c->rotary.axis_dim = rarely(w) ? hostile_i32(w) : 2 * (int32_t)pick(w, 2);
    c->bias.coords = matrix(w, n, 3, SPOPS_DTYPE_I32);
    if (n != m || pick(w, 2)) c->bias.key_coords = matrix(w, m, 3, SPOPS_DTYPE_I32);
    c->bias.table = matrix(w, 3 * (2 * range + 1), heads, SPOPS_DTYPE_F32);
    if (pick(w, 4)) c->norm.q_weight = matrix(w, pick(w, 2) ? heads : 1, dim, SPOPS_DTYPE_F32);
    if (pick(w, 4)) c->norm.k_weight = matrix(w, pick(w, 2) ? kv_heads : 1, dim, SPOPS_DTYPE_F32);
    c->norm.epsilon = (float)hostile_f64(w, 0.0);
    spoil_size(w, &c->rotary.struct_size);
    spoil_size(w, &c->bias.struct_size);
    spoil_size(w, &c->norm.struct_size);
    spoil_size(w, &o->struct_size);
    if (pick(w, 2)) o->rotary = &c->rotary;
    if (pick(w, 2)) o->bias = &c->bias;
    if (pick(w, 2)) o->norm = &c->norm;
}

static void attend(world *w)
{
    const spops_patches *p = find(w, PATCHES);
    spops_patches_info info = spops_patches_info_default();
    attention_choice c;
    (void)CALL(w, spops_patches_get_info_sync(w->ctx, p, &info));
    if (info.num_rows >= 4096) info.num_rows = 0;
    if (info.num_key_rows >= 4096) info.num_key_rows = 0;
    const int64_t n = info.num_rows, m = info.num_key_rows, range = pick(w, 3);
    const int32_t kv_heads = 1 + (int32_t)pick(w, 3), heads = kv_heads * (1 + (int32_t)pick(w, 2));
    const int64_t dim = pick(w, 2) ? 6 * (1 + pick(w, 3)) : cols_of(w);
    const int64_t cols = heads * dim, kv_cols = kv_heads * dim;
    const spops_dtype t = float_dtype(w), gt = pick(w, 2) ? SPOPS_DTYPE_F32 : t;
    choose_attention(w, &c, &info, heads, kv_heads, dim, range);
    const spops_attention_options *o = &c.options;
    const spops_matrix q = matrix(w, n, cols, t), k = matrix(w, m, kv_cols, t);
    const spops_matrix v = matrix(w, m, kv_cols, t), out = matrix(w, n, cols, t);
    float *lse = vector(w, n * heads);
    const int32_t backward = (int32_t)pick(w, 2);
    const size_t scratch = spops_attention_scratch_bytes(p, cols, t, o, backward);
    int32_t tile = 0;
    if (rarely(w))
        CALL(w, spops_attention_get_tile(w->ctx, p, cols, t, rarely(w) ? NULL : o,
                                         rarely(w) ? hostile_i32(w) : backward,
                                         rarely(w) ? NULL : &tile));
    if (pick(w, 4) > 0)
        CALL(w, pick(w, 2) ? spops_attention_reserve(w->ctx, p, cols, t, o,
                                                     rarely(w) ? hostile_i32(w) : backward)
                           : spops_context_reserve(w->ctx, scratch));
    if (pick(w, 2)) {
        CALL(w, spops_attention_execute(w->ctx, p, q, k, v, rarely(w) ? NULL : o,
                                        rarely(w) ? q : out, lse));
        return;
    }
    const spops_matrix g = matrix(w, n, cols, t), gq = matrix(w, n, cols, gt);
    const spops_matrix gk = matrix(w, m, kv_cols, gt), gv = matrix(w, m, kv_cols, gt);
    const spops_matrix table = matrix(w, 3 * (2 * range + 1), heads, SPOPS_DTYPE_F32);
    const spops_matrix *weights[] = {&c.norm.q_weight, &c.norm.k_weight};
    spops_matrix grad_weights[2];
    for (int side = 0; side < 2; ++side)
        grad_weights[side] = matrix(w, weights[side]->rows, dim, SPOPS_DTYPE_F32);
    CALL(w, spops_attention_execute_backward(
                w->ctx, p, g, q, k, v, out, lse, o, maybe(w, &gq), rarely(w) ? &gq : maybe(w, &gk),
                maybe(w, &gv), pick(w, 2) ? &table : NULL,
                o->norm != NULL && weights[0]->rows > 0 ? maybe(w, &grad_weights[0]) : NULL,
                rarely(w) || (o->norm != NULL && weights[1]->rows > 0) ? maybe(w, &grad_weights[1])
                                                                       : NULL));
}

// ---- Operators of the list ----------------------------------------------------------------------

static spops_value int_value(int64_t i)
{
    const spops_value v = {SPOPS_VALUE_INT, 0, {.i = i}};
    return v;
}

// A tensor of a dtype that the row names, of any small size; its memory is what it says.
static spops_value tensor_value(world *w, const spops_operator_argument *a)
{
    const int is_i32 = strncmp(a->type, "i32", 3) == 0, is_u8 = strncmp(a->type, "u8", 2) == 0;
    spops_tensor *t = block(w, sizeof *t);
    int64_t *shape = block(w, 2 * sizeof *shape), elements = 1;

    memset(t, 0, sizeof *t);
    t->device_type = 1;
    t->num_dims = rarely(w) ? (int32_t)pick(w, 3) : a->num_dims;
    t->dtype_code = is_i32 ? 0 : is_u8 ? 1 : 2;
    t->dtype_bits = is_u8 ? 8 : is_i32 || pick(w, 4) > 0 ? 32 : 16;
    t->dtype_lanes = 1;
    t->shape = shape;
    for (int i = 0; i < t->num_dims; ++i) {
        shape[i] = i == 0 ? pick(w, MOST_ROWS) : cols_of(w);
        elements *= shape[i];
    }
    t->data = block(w, (size_t)elements * t->dtype_bits / 8);
    if (is_i32) memset(t->data, 0, (size_t)elements * 4);
    const spops_value v = {SPOPS_VALUE_TENSOR, 0, {.p = t}};
    return v;
}

static spops_value plan_value(world *w, const spops_operator_argument *a)
{
    int32_t num;
    const spops_plan_kind_info *kinds = spops_plan_kinds(&num);
    spops_value v = {SPOPS_VALUE_POINTER, 0, {.p = NULL}};
    for (int i = 0; i < w->num_objects; ++i) {
        const spops_plan_kind k = spops_plan_get_kind(w->objects[i].ptr);
        if (strcmp(kinds[k - 1].name, a->type) == 0 || rarely(w)) v.v.p = w->objects[i].ptr;
    }
    return v;
}

static spops_comm *comm_of(world *w)
{
    spops_comm_group *group = NULL;
    if (w->comm == NULL && spops_comm_group_create(1, &group) == SPOPS_STATUS_OK) {
        (void)CALL(w, spops_comm_create_threads(w->ctx, group, 0, NULL, &w->comm));
        spops_comm_group_destroy(group);
    }
    return rarely(w) ? NULL : w->comm;
}

static spops_value comm_value(world *w)
{
    const spops_value v = {SPOPS_VALUE_POINTER, 0, {.p = comm_of(w)}};
    return v;
}

static spops_value attribute_value(world *w, const spops_operator_argument *a)
{
    spops_value v = {SPOPS_VALUE_FLOAT, 0, {.f = 0.5}};
    if (rarely(w)) return int_value(hostile_i32(w));
    if (a->kind == SPOPS_ARGUMENT_FLOAT) return v;
    if (a->kind == SPOPS_ARGUMENT_FLOATS) return pick(w, 4) ? v : (spops_value){0, 0, {0}};
    return int_value(pick(w, a->kind == SPOPS_ARGUMENT_INT ? MOST_ROWS : 4));
}

static void call_operator(world *w)
{
    int32_t num, n = 0, plans = 0;
    const spops_operator *const *ops = spops_operators(&num);
    const spops_operator *op = ops[(pick(w, 256) + 256 * pick(w, 2)) % (uint32_t)num];
    const int num_args = op->num_inputs + op->num_outputs;
    spops_value values[96], ret;
    size_t bytes = 0;

    FUZZ_REQUIRE(spops_operator_find(op->name) == op, "%s", op->name);
    for (int i = 0; i < num_args; ++i) {
        const spops_operator_argument *a = op->arguments[i];
        const int is_plan = a->kind == SPOPS_ARGUMENT_PLAN;
        plans += is_plan;
        values[n++] = (a->is_optional && pick(w, 2)) || (is_plan && i >= op->num_inputs)
                          ? (spops_value){0, 0, {0}}
                      : is_plan                        ? plan_value(w, a)
                      : a->kind == SPOPS_ARGUMENT_COMM ? comm_value(w)
                                                       : tensor_value(w, a);
    }
    for (int i = 0; i < plans; ++i)
        values[n++] = (spops_value){0, 0, {0}};
    for (int i = 0; i < op->num_attributes; ++i)
        values[n++] = attribute_value(w, op->arguments[num_args + i]);
    if (op->num_optional > 0)
        values[n++] = rarely(w) ? int_value(pick(w, 8)) : (spops_value){0, 0, {0}};
    if (rarely(w)) --n;
    if (CALL(w, spops_call_scratch_bytes(w->ctx, op, values, n, &bytes)))
        FUZZ_REQUIRE(bytes < SIZE_MAX, "%s", op->name);
    for (int32_t i = 0; i < op->num_outputs; ++i) {
        int64_t shape[SPOPS_CALL_MAX_DIMS];
        spops_tensor out;
        if (CALL(w, spops_call_output(w->ctx, op, values, n, i, NULL, &out, shape)))
            FUZZ_REQUIRE(out.num_dims > 0 && out.num_dims <= SPOPS_CALL_MAX_DIMS, "%s", op->name);
    }
    if (rarely(w)) { // on a context of the library's own
        spops_call_set_stream(0, NULL);
        spops_call_set_device(-1);
        spops_call_set_allocator(NULL);
        const size_t memory_bytes = spops_context_scratch_memory(bytes < 1u << 20 ? bytes : 0);
        void *memory = pick(w, 2) ? aligned_alloc(64, (memory_bytes + 63) / 64 * 64) : NULL;
        if (spops_call_on_stream(NULL, memory, memory_bytes, op, values, n, &ret) ==
                SPOPS_STATUS_OK &&
            ret.type != 0 && op->arguments[op->num_inputs]->may_be == NULL)
            spops_call_destroy(ret.v.p);
        free(memory);
        if (spops_call(NULL, op, values, n, &ret) == SPOPS_STATUS_OK && ret.type != 0 &&
            op->arguments[op->num_inputs]->may_be == NULL)
            spops_call_destroy(ret.v.p);
        spops_call_release();
        return;
    }
    if (CALL(w, spops_call(w->ctx, op, values, n, &ret)) && ret.type != SPOPS_VALUE_NONE &&
        op->arguments[op->num_inputs]->may_be == NULL)
        spops_plan_destroy(ret.v.p);
}

// ---- Models -------------------------------------------------------------------------------------

// A file of one layer, as exporters write it, or with a byte that is another.
static void put_layer(world *w, onnx_file *f)
{
    const int64_t dims[2] = {10, 8};
    const int size = 4 + (int)pick(w, 5), stride = 1 + (int)pick(w, 2);
    const uint16_t *weight = block(w, 8 * 27 * 8 * 2);
    onnx_conv c = {.name = "conv0", .x = "0", .out = "1", .rulebook = "", .activation = "ReLU"};

    c.in = c.out_cols = 8;
    c.weight = weight;
    c.bias = weight;
    c.subm = stride == 1;
    c.output_bound = 1 + (int)pick(w, 100);
    for (int a = 0; a < 3; ++a) {
        c.kernel[a] = 3;
        c.stride[a] = stride;
        c.padding[a] = 1;
        c.in_shape[a] = size;
        c.out_shape[a] = (size - 1) / stride + 1;
    }
    onnx_file_begin(f);
    onnx_put_conv(f, &c);
    onnx_value(f, 11, "0", ONNX_FLOAT16, 2, dims);
    onnx_value(f, 12, "1", ONNX_FLOAT16, 2, dims);
    onnx_file_end(f);
    if (rarely(w))
        f->model.data[(pick(w, 256) * 256 + pick(w, 256)) % f->model.num] = (uint8_t)pick(w, 256);
}

static void use_model(world *w, spops_model *model)
{
    spops_model_info info = spops_model_info_default();
    spops_model_layer layer = spops_model_layer_default();
    spops_model_array array = spops_model_array_default();
    spops_coords_info set = spops_coords_info_default();
    const int32_t index = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4);

    (void)CALL(w, spops_model_get_info(w->ctx, model, &info));
    (void)CALL(w, spops_model_get_layer(w->ctx, model, index, &layer));
    (void)CALL(w, spops_model_get_output(w->ctx, model, index, &array));
    if (CALL(w, spops_model_get_input(w->ctx, model, 0, &array)) && array.coords != NULL) {
        *array.num_rows = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 3);
        array.coords[1] = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4);
    }
    if (rarely(w))
        (void)CALL(w, spops_model_execute_layer(w->ctx, model, index));
    else
        (void)CALL(w, spops_model_execute(w->ctx, model));
    (void)CALL(w, spops_model_get_set_sync(w->ctx, model, index, &set));
    (void)CALL(w, spops_model_check_sync(w->ctx, model));
}

static void load_model(world *w)
{
    spops_model_options o = spops_model_options_default();
    spops_voxels_options voxels = spops_voxels_options_default();
    spops_model *model = NULL;
    onnx_file f;

    put_layer(w, &f);
    o.max_rows = count_of(w, pick(w, 20));
    o.max_points = count_of(w, pick(w, 20));
    o.max_inner_rows = count_of(w, pick(w, 20));
    o.num_batches = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 3);
    o.widen = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 2);
    o.int8 = (spops_model_int8)(rarely(w) ? hostile_i32(w) : 0);
    o.no_graph = (int32_t)pick(w, 2);
    spoil_size(w, &o.struct_size);
    for (int a = 0; a < 3; ++a)
        voxels.size_m[a] = hostile_f64(w, 0.5);
    voxels.crop = rarely(w);
    if (pick(w, 3) == 1) o.voxels = &voxels;
    const int ok = rarely(w)
                       ? CALL(w, spops_model_load_file(w->ctx, "no such file", &o, &model))
                       : CALL(w, spops_model_load(w->ctx, f.model.data, f.model.num, &o, &model));
    FUZZ_REQUIRE(ok == (model != NULL), "model_load");
    if (ok) use_model(w, model);
    if (rarely(w)) use_model(w, NULL);
    spops_model_destroy(model);
    onnx_file_free(&f);
}

// One rank of a group of one, or of two of which the other never comes.
static void use_comm(world *w)
{
    spops_comm_options o = spops_comm_options_default();
    spops_comm_group *group = NULL;
    spops_comm *comm = NULL;
    const int32_t num_ranks = rarely(w) ? hostile_i32(w) : 1 + (int32_t)rarely(w);
    const spops_status said[] = {SPOPS_STATUS_OK, SPOPS_STATUS_INVALID_ARGUMENT,
                                 SPOPS_STATUS_CAPACITY_EXCEEDED, (spops_status)11};
    int64_t counts[4], offsets[4];
    uint8_t value[8] = {0}, values[16];
    o.timeout_ms = rarely(w) ? hostile_i32(w) : 1;
    uint8_t id[SPOPS_COMM_NCCL_ID_BYTES] = {0};
    FUZZ_REQUIRE(!CALL(w, spops_comm_get_nccl_id(w->ctx, id)) &&
                     !CALL(w, spops_comm_create_nccl(w->ctx, id, &o, &comm)) &&
                     !CALL(w, spops_comm_create_nccl_id(w->ctx, id, num_ranks, 0, &o, &comm)) &&
                     comm == NULL,
                 "NCCL on the CPU");
    if (num_ranks > 2 || spops_comm_group_create(num_ranks, rarely(w) ? NULL : &group) != 0) return;
    const int32_t rank = rarely(w) ? hostile_i32(w) : 0;
    (void)CALL(w, spops_comm_create_threads(w->ctx, rarely(w) ? NULL : group, rank, &o, &comm));
    if (comm != NULL && o.timeout_ms > 0 && o.timeout_ms < 100) { // 0 is a minute
        const spops_dtype dtype = any_dtype(w);
        const int64_t rows = pick(w, 8), cols = pick(w, 4) * 2;
        const spops_matrix send = matrix(w, rows, cols, dtype), recv = matrix(w, rows, cols, dtype);
        for (int i = 0; i < 4; ++i) {
            counts[i] = count_of(w, pick(w, 4));
            offsets[i] = count_of(w, pick(w, 4));
        }
        const spops_comm_layout l = {counts, offsets, counts, rarely(w) ? NULL : offsets + 2};
        (void)CALL(w, spops_comm_exchange_execute(w->ctx, comm, rarely(w) ? NULL : &l, send, recv));
        (void)CALL(w, spops_comm_exchange_begin(w->ctx, comm, &l, send, recv));
        (void)CALL(w, spops_comm_barrier_sync(w->ctx, comm)); // refused, where that one has begun
        (void)CALL(w, spops_comm_exchange_end(w->ctx, comm));
        (void)CALL(w, spops_comm_gather_sync(w->ctx, comm, value, pick(w, 9), values));
        (void)CALL(
            w, spops_comm_broadcast_execute(w->ctx, comm, rarely(w) ? hostile_i32(w) : 0, recv));
        const int64_t parts = count_of(w, pick(w, 4)), width = count_of(w, pick(w, 90));
        const int64_t first[3] = {rarely(w), parts, parts};
        const size_t scratch = spops_comm_sum_scratch_bytes(comm, parts, width, SPOPS_DTYPE_F32);
        if (scratch < MOST_BYTES) (void)CALL(w, spops_context_reserve(w->ctx, scratch));
        (void)CALL(w, spops_comm_sum_execute(
                          w->ctx, comm, rarely(w) ? NULL : first,
                          matrix(w, pick(w, 4), width < MOST_BYTES ? width : 3, SPOPS_DTYPE_F32),
                          matrix(w, 1, width < MOST_BYTES ? width : 3, SPOPS_DTYPE_F32)));
        (void)CALL(w, spops_comm_wait_sync(w->ctx, comm));
        (void)CALL(w, spops_comm_agree_sync(w->ctx, comm, said[pick(w, 4)]));
        FUZZ_REQUIRE(spops_comm_rank(comm) == rank && spops_comm_num_ranks(comm) == num_ranks,
                     "rank");
    }
    const int is_first = (int)pick(w, 2);
    if (is_first) spops_comm_group_destroy(group);
    spops_comm_destroy(comm);
    if (!is_first) spops_comm_group_destroy(group);
}

// A partition, a halo and sums of one rank, by options that no row has as they are; then operators take
// them.
static void make_ranks(world *w)
{
    spops_partition_options o = spops_partition_options_default();
    spops_halo_options h = spops_halo_options_default();
    spops_partition *partition = NULL;
    spops_halo *halo = NULL;
    spops_chunk_sums *sums = NULL;
    spops_comm *comm = comm_of(w);
    const spops_coords *coords = any_coords(w);
    int32_t strides[4], reach[4], first[2] = {0, 3};

    o.num_chunks = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 5);
    o.cell_log2 = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 5);
    o.order = (spops_coords_order)(rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 4));
    if (rarely(w)) o.first_chunk = first;
    spoil_size(w, &o.struct_size);
    for (int i = 0; i < 4; ++i) {
        strides[i] = rarely(w) ? hostile_i32(w) : 1 << pick(w, 3);
        reach[i] = rarely(w) ? hostile_i32(w) : (int32_t)pick(w, 3);
    }
    if (CALL(w, spops_partition_create(w->ctx, comm, coords, &o, &partition)))
        keep(w, PARTITION, partition);
    if (rarely(w)) save_and_load(w, SPOPS_PLAN_PARTITION, PARTITION, partition, NULL, 0);
    h.stride = pick(w, 2) ? strides : NULL;
    h.reach = pick(w, 2) ? reach : NULL;
    h.max_cols = count_of(w, pick(w, 9));
    spoil_size(w, &h.struct_size);
    if (CALL(w, spops_halo_create(w->ctx, comm, partition, coords, &h, &halo))) keep(w, HALO, halo);
    if (CALL(w, spops_chunk_sums_create(w->ctx, comm, partition, count_of(w, pick(w, 9)), &sums)))
        keep(w, CHUNK_SUMS, sums);
    if (halo == NULL) return;
    const spops_plan *plan = (const spops_plan *)halo;
    int64_t fields[2] = {0, 0};
    (void)spops_plan_get_fields(plan, fields, 2); // owned rows and ghosts
    const spops_matrix out = matrix(w, fields[0] + fields[1], cols_of(w), any_dtype(w));
    spops_matrix x = out;
    x.rows = rarely(w) ? hostile_i32(w) : fields[0];
    (void)CALL(w, spops_halo_begin(w->ctx, halo, x, out));
    (void)CALL(w, spops_halo_end(w->ctx, halo));
    if (rarely(w)) { // plans outlive it, and say so
        spops_comm_destroy(w->comm);
        w->comm = NULL;
    }
}

// ---- The table ----------------------------------------------------------------------------------

static void (*const calls[])(world *w) = {
    call_context,       fail_allocations, make_segments,   reserve_segments, attach_plan,
    use_segments,       reduce_segments,  reduce_segments, gather_rows,      register_reduction,
    make_bev_plan,      copy_bev_plan,    pool_bev,        make_coords,      make_coords,
    set_coords,         make_voxels,      make_devoxels,   make_map,         make_map,
    make_pool,          make_pyramid,     make_sparseconv, convolve,         make_triplets,
    multiply,           normalise,        quantise,        copy_weights,     make_neighbors,
    make_nearest,       make_pointconv,   convolve_points, make_point_level, make_interpolation,
    make_point_pyramid, make_patches,     attend,          make_buckets,     pool_buckets,
    multiply_rows,      convert_rows,     call_operator,   call_operator,    normalise_samples,
    activate,           load_model,       use_comm,        make_ranks,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    world w;
    memset(&w, 0, sizeof w);
    num_planned = num_planned_clouds = 0;
    w.input = (fuzz_input){data, bytes, 0};
    for (int i = 0; i < NUM_CONTEXTS; ++i)
        w.contexts[i] = fuzz_context_create(&w.memory[i], 1);
    for (int i = 0; i < MOST_CALLS && w.input.at < bytes && w.num_objects < MOST_OBJECTS - 4; ++i) {
        w.ctx = w.contexts[pick(&w, 8) == 1];
        calls[pick(&w, (uint32_t)(sizeof calls / sizeof *calls))](&w);
        for (int b = 0; b < w.num_blocks; ++b)
            free(w.blocks[b]);
        w.num_blocks = 0;
    }
    spops_comm_destroy(w.comm);
    while (w.num_objects > 0)
        destroy(&w.objects[--w.num_objects]);
    for (int i = 0; i < NUM_CONTEXTS; ++i)
        fuzz_context_destroy(w.contexts[i], &w.memory[i]);
    for (int i = 0; i < w.num_kept; ++i)
        free(w.kept[i]);
    return 0;
}
