// SPDX-License-Identifier: Apache-2.0
// C++17 on top of the C interface: objects that free themselves, failures as exceptions or as results,
// matrices of typed arrays. Nothing is hidden: handles convert to the C pointers, which every call takes.
//
//     spops::context ctx(SPOPS_BACKEND_CPU);
//     auto plan = spops::make<spops::segments>(ctx, spops_segments_create_from_keys, n, terms, keys,
//                                              SPOPS_KEYS_UNSORTED, nullptr);
//     spops::check(ctx, spops_segreduce_execute(ctx, plan, SPOPS_REDUCE_SUM, spops::matrix(x, n, c),
//                                               nullptr, spops::matrix(out, m, c), nullptr));
//
// Without exceptions (-fno-exceptions leaves out what throws: error, check, make and the constructors
// of context that open one):
//
//     spops::result<spops::context> opened = spops::try_open(SPOPS_BACKEND_CPU);
//     if (!opened) return std::fprintf(stderr, "%s\n", opened.message()), 1;
//     spops::context &ctx = *opened;
//     auto plan = spops::try_make<spops::segments>(ctx, spops_segments_create, n, offsets, nullptr);
//     if (!plan) return std::fprintf(stderr, "%s\n", plan.message()), 1;
//     const spops_status status = spops_segreduce_execute(ctx, *plan, SPOPS_REDUCE_SUM, x, nullptr,
//                                                         out, nullptr);
#ifndef SPOPS_SPOPS_HPP
#define SPOPS_SPOPS_HPP

#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "spops/spops.h"

#if defined(__cpp_exceptions) || defined(_CPPUNWIND)
/// Defined where the compiler has exceptions: with it come error, check, make and contexts that open
/// themselves.
#define SPOPS_HPP_EXCEPTIONS 1
#endif

namespace spops
{

#ifdef SPOPS_HPP_EXCEPTIONS
/// What a call that fails becomes: its status, and the library's line.
class error : public std::runtime_error
{
  public:
    error(spops_status status, const char *line)
        : std::runtime_error(std::string(spops_status_name(status)) + ": " + line), code(status)
    {
    }
    spops_status status() const noexcept { return code; }

  private:
    spops_status code;
};

/// Throw unless status is OK. ctx may be null for a call that had no context.
inline void check(const spops_context *ctx, spops_status status)
{
    if (status != SPOPS_STATUS_OK) throw error(status, spops_last_error(ctx));
}
#endif

/// An object, or why there is none.
template <class T> class result
{
  public:
    result(T made) noexcept : object(std::move(made)) {}
    result(spops_status status, const char *line)
        : object(static_cast<typename T::type *>(nullptr)), code(status), text(line)
    {
    }
    /// Whether there is an object.
    explicit operator bool() const noexcept { return code == SPOPS_STATUS_OK; }
    spops_status status() const noexcept { return code; }
    /// The library's line; empty where there is an object.
    const char *message() const noexcept { return text.c_str(); }
    /// The object; an empty handle where there is none.
    T &operator*() noexcept { return object; }
    const T &operator*() const noexcept { return object; }
    T *operator->() noexcept { return &object; }
    const T *operator->() const noexcept { return &object; }

  private:
    T object;
    spops_status code = SPOPS_STATUS_OK;
    std::string text;
};

/// Frees an object of the library.
template <auto Destroy> struct destroyer {
    template <class T> void operator()(T *object) const noexcept { Destroy(object); }
};

/// An object of the library that frees itself; moves, does not copy, is what every call takes.
template <class T, void (*Destroy)(T *)> class handle
{
  public:
    using type = T;
    handle() noexcept = default;
    explicit handle(T *object) noexcept : owned(object) {}
    operator T *() const noexcept { return owned.get(); }
    T *get() const noexcept { return owned.get(); }
    T *release() noexcept { return owned.release(); }
    void reset(T *object = nullptr) noexcept { owned.reset(object); }

  private:
    std::unique_ptr<T, destroyer<Destroy>> owned;
};

/// The objects of the library, each freed by its own destroy.
/// @{
using plan = handle<spops_plan, spops_plan_destroy>;        ///< of any kind
using called_plan = handle<spops_plan, spops_call_destroy>; ///< that spops_call made for no context
using bev_plan = handle<spops_bev_plan, spops_bev_plan_destroy>;
using coords = handle<spops_coords, spops_coords_destroy>;
using kernel_map = handle<spops_kernel_map, spops_kernel_map_destroy>;
using triplets = handle<spops_triplets, spops_triplets_destroy>;
using pointconv = handle<spops_pointconv, spops_pointconv_destroy>;
using neighbors = handle<spops_neighbors, spops_neighbors_destroy>;
using buckets = handle<spops_buckets, spops_buckets_destroy>;
using patches = handle<spops_patches, spops_patches_destroy>;
using nearest = handle<spops_nearest, spops_nearest_destroy>;
using point_level = handle<spops_point_level, spops_point_level_destroy>;
using point_pyramid = handle<spops_point_pyramid, spops_point_pyramid_destroy>;
using interpolation = handle<spops_interpolation, spops_interpolation_destroy>;
using pool = handle<spops_pool, spops_pool_destroy>;
using pyramid = handle<spops_pyramid, spops_pyramid_destroy>;
using segments = handle<spops_segments, spops_segments_destroy>;
using sparseconv = handle<spops_sparseconv, spops_sparseconv_destroy>;
using model = handle<spops_model, spops_model_destroy>;
using comm = handle<spops_comm, spops_comm_destroy>;
using comm_group = handle<spops_comm_group, spops_comm_group_destroy>;
using partition = handle<spops_partition, spops_partition_destroy>;
using halo = handle<spops_halo, spops_halo_destroy>;
using chunk_sums = handle<spops_chunk_sums, spops_chunk_sums_destroy>;
using voxels = handle<spops_voxels, spops_voxels_destroy>;
using devoxels = handle<spops_devoxels, spops_devoxels_destroy>;
/// @}

/// A context. It must outlive what was made with it: declare it first.
class context : public handle<spops_context, spops_context_destroy>
{
  public:
    /// Take over an open one, or none.
    explicit context(spops_context *opened) noexcept : handle(opened) {}
#ifdef SPOPS_HPP_EXCEPTIONS
    explicit context(spops_backend_kind backend = SPOPS_BACKEND_AUTO, void *stream = nullptr)
    {
        spops_context_options options = spops_context_options_default();
        options.backend = backend;
        options.stream = stream;
        open(options);
    }
    explicit context(const spops_context_options &options)
    {
        open(options);
    }
    /// Wait for what was enqueued.
    void wait()
    {
        check(get(), spops_context_wait_sync(get()));
    }

  private:
    void open(const spops_context_options &options)
    {
        spops_context *made = nullptr;
        check(nullptr, spops_context_create(&options, &made));
        reset(made);
    }
#endif
};

/// Open a context.
inline result<context> try_open(const spops_context_options &options)
{
    spops_context *made = nullptr;
    const spops_status status = spops_context_create(&options, &made);
    if (status != SPOPS_STATUS_OK) return {status, spops_last_error(nullptr)};
    return context(made);
}

/// Open a context of a backend, on a stream.
inline result<context> try_open(spops_backend_kind backend = SPOPS_BACKEND_AUTO,
                                void *stream = nullptr)
{
    spops_context_options options = spops_context_options_default();
    options.backend = backend;
    options.stream = stream;
    return try_open(options);
}

/// Make an object by one of the calls whose first argument is a context and whose last is where the
/// object goes: try_make<segments>(ctx, spops_segments_create, num_segments, offsets, nullptr).
template <class Handle, class Create, class... Arguments>
result<Handle> try_make(const context &ctx, Create create, Arguments &&...arguments)
{
    typename Handle::type *made = nullptr;
    const spops_status status = create(ctx, std::forward<Arguments>(arguments)..., &made);
    if (status != SPOPS_STATUS_OK) return {status, spops_last_error(ctx)};
    return Handle(made);
}

#ifdef SPOPS_HPP_EXCEPTIONS
/// The same, or an error is thrown.
template <class Handle, class Create, class... Arguments>
Handle make(const context &ctx, Create create, Arguments &&...arguments)
{
    typename Handle::type *made = nullptr;
    check(ctx, create(ctx, std::forward<Arguments>(arguments)..., &made));
    return Handle(made);
}
#endif

/// The dtype of an element type of this language; for others, such as f16, use spops_matrix_dense.
template <class T> constexpr spops_dtype dtype_of()
{
    using element = std::remove_const_t<T>;
    static_assert(std::is_same_v<element, float> || std::is_same_v<element, int32_t>,
                  "no dtype of the library is this type");
    return std::is_same_v<element, float> ? SPOPS_DTYPE_F32 : SPOPS_DTYPE_I32;
}

/// A matrix of float or int32_t, whose rows follow each other without a gap. Of const elements it is
/// for inputs.
template <class T> spops_matrix matrix(T *data, int64_t rows, int64_t cols)
{
    return spops_matrix_dense_const(data, rows, cols, dtype_of<T>());
}

} // namespace spops

#endif
