// SPDX-License-Identifier: Apache-2.0
// Reductions registered at run time: NVRTC, opened with dlopen so that the library loads without
// it, compiles the kernels of spops/device/ for the caller's struct.
#include <dlfcn.h>
#include <nvrtc.h>
#include <stdio.h>
#include <string.h>

#include "kernels/segreduce/custom_kernels.h"
#include "kernels/core/launch.cuh"
#include "segreduce/segreduce_args.h"

extern "C" {
extern const char *const spops_embedded_header_names[];
extern const char *const spops_embedded_header_sources[];
extern const int spops_num_embedded_headers;
}

namespace
{

constexpr int num_dtypes = 3; // f32, f16, bf16 in the order of spops_dtype
constexpr int num_kernels = SPOPS_NUM_CUSTOM_KERNELS * num_dtypes * 2;

struct custom_kernels {
    cudaLibrary_t library;
    cudaKernel_t kernels[num_kernels]; // NULL: the struct has no gradient
};

int kernel_index(spops_custom_kernel kernel, int dtype, bool wide)
{
    return ((int)kernel * num_dtypes + dtype) * 2 + (wide ? 1 : 0);
}

// The NVRTC functions in use, or why they are not there.
struct nvrtc_api {
    void *handle;
    decltype(&nvrtcCreateProgram) create_program;
    decltype(&nvrtcDestroyProgram) destroy_program;
    decltype(&nvrtcAddNameExpression) add_name;
    decltype(&nvrtcCompileProgram) compile;
    decltype(&nvrtcGetProgramLogSize) log_size;
    decltype(&nvrtcGetProgramLog) log;
    decltype(&nvrtcGetLoweredName) lowered_name;
    decltype(&nvrtcGetCUBINSize) cubin_size;
    decltype(&nvrtcGetCUBIN) cubin;
};

template <class F> bool find_symbol(void *handle, const char *name, F &function)
{
    function = reinterpret_cast<F>(dlsym(handle, name));
    return function != nullptr;
}

spops_status open_nvrtc(spops_context *ctx, nvrtc_api *api)
{
    char name[64];
    *api = nvrtc_api();
    snprintf(name, sizeof name, "libnvrtc.so.%d", CUDART_VERSION / 1000);
    const char *const names[] = {name, "libnvrtc.so"};
    for (int i = 0; i < 2 && api->handle == nullptr; ++i)
        api->handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (api->handle == nullptr)
        return spops_fail(ctx, SPOPS_STATUS_COMPILE_FAILED,
                          "reduce_create: NVRTC cannot be opened: neither %s nor %s is found",
                          names[0], names[1]);
    const bool found = find_symbol(api->handle, "nvrtcCreateProgram", api->create_program) &&
                       find_symbol(api->handle, "nvrtcDestroyProgram", api->destroy_program) &&
                       find_symbol(api->handle, "nvrtcAddNameExpression", api->add_name) &&
                       find_symbol(api->handle, "nvrtcCompileProgram", api->compile) &&
                       find_symbol(api->handle, "nvrtcGetProgramLogSize", api->log_size) &&
                       find_symbol(api->handle, "nvrtcGetProgramLog", api->log) &&
                       find_symbol(api->handle, "nvrtcGetLoweredName", api->lowered_name) &&
                       find_symbol(api->handle, "nvrtcGetCUBINSize", api->cubin_size) &&
                       find_symbol(api->handle, "nvrtcGetCUBIN", api->cubin);
    if (found) return SPOPS_STATUS_OK;
    dlclose(api->handle);
    return spops_fail(ctx, SPOPS_STATUS_COMPILE_FAILED,
                      "reduce_create: libnvrtc lacks a function of CUDA %d", CUDART_VERSION / 1000);
}

// Name expression of one kernel for the caller's struct.
void name_kernel(const char *op, int index, char *name, size_t bytes)
{
    static const char *const types[num_dtypes] = {"float", "spops::f16", "spops::bf16"};
    const bool wide = index % 2 != 0;
    const int dtype = index / 2 % num_dtypes, kernel = index / 2 / num_dtypes;
    const int vec = !wide ? 1 : dtype == SPOPS_DTYPE_F32 ? 4 : 8;
    switch (kernel) {
    case SPOPS_CUSTOM_SEGREDUCE:
        snprintf(
            name, bytes,
            "&spops::segreduce_kernel<spops::segreduce_policy<%d, 4, 1, false, false>, %s, %s, "
            "spops::WEIGHT_ANY, %d, true>",
            SPOPS_CUSTOM_THREADS, op, types[dtype], vec);
        break;
    case SPOPS_CUSTOM_SEGGRAD:
        snprintf(name, bytes, "&spops::seggrad_kernel<%d, %s, %s, %d>", SPOPS_CUSTOM_THREADS, op,
                 types[dtype], vec);
        break;
    default:
        snprintf(name, bytes, "&spops::segdot_kernel<%d, %s, %s, %d>", SPOPS_CUSTOM_THREADS, op,
                 types[dtype], vec);
        break;
    }
}

// The first line of the compiler's log that speaks of an error goes into the message.
spops_status report_log(spops_context *ctx, const nvrtc_api *api, const char *name,
                        nvrtcProgram program)
{
    size_t bytes = 0;
    char *log = nullptr;
    if (api->log_size(program, &bytes) == NVRTC_SUCCESS && bytes > 1) {
        log = static_cast<char *>(spops_host_alloc(ctx, bytes + 1, 1));
        if (log == nullptr) return SPOPS_STATUS_OUT_OF_MEMORY;
    }
    if (log == nullptr || api->log(program, log) != NVRTC_SUCCESS) {
        spops_host_free(ctx, log, bytes + 1, 1);
        return spops_fail(ctx, SPOPS_STATUS_COMPILE_FAILED,
                          "reduce_create: %s: cuda_source does not compile", name);
    }
    const char *line = strstr(log, "error");
    while (line != nullptr && line > log && line[-1] != '\n')
        --line;
    if (line == nullptr) line = log;
    const int length = (int)strcspn(line, "\n");
    const spops_status status =
        spops_fail(ctx, SPOPS_STATUS_COMPILE_FAILED,
                   "reduce_create: %s: cuda_source does not compile: %.*s", name, length, line);
    spops_host_free(ctx, log, bytes + 1, 1);
    return status;
}

spops_status find_kernels(spops_context *ctx, const nvrtc_api *api, nvrtcProgram program,
                          const char *op, int count, custom_kernels *kernels)
{
    char name[512];
    for (int i = 0; i < count; ++i) {
        const char *lowered = nullptr;
        name_kernel(op, i, name, sizeof name);
        if (api->lowered_name(program, name, &lowered) != NVRTC_SUCCESS)
            return spops_fail(ctx, SPOPS_STATUS_COMPILE_FAILED,
                              "reduce_create: the compiler lost kernel %s", name);
        SPOPS_TRY(spops_cuda_status(
            ctx, "reduce_create: cudaLibraryGetKernel",
            (int)cudaLibraryGetKernel(&kernels->kernels[i], kernels->library, lowered)));
    }
    return SPOPS_STATUS_OK;
}

// Compile the first `count` kernels and load them. ok is false, without a message, when the source
// does not compile and quiet is true.
spops_status compile_kernels(spops_context *ctx, const nvrtc_api *api,
                             const spops_reduce_desc *desc, int count, bool quiet,
                             custom_kernels *kernels, bool *ok)
{
    spops_status status = SPOPS_STATUS_OK;
    nvrtcProgram program = nullptr;
    char *source = nullptr, *cubin = nullptr;
    size_t cubin_bytes = 0;
    char option[64], name[512];
    static const char prefix[] = "#include \"spops/device/segreduce_backward.cuh\"\n#line 1 \"";
    const size_t source_bytes =
        sizeof prefix + strlen(desc->name) + strlen(desc->cuda_source) + sizeof "\"\n\n";
    const char *options[] = {"--std=c++17", "--fmad=true", option};

    *ok = false;
    source = static_cast<char *>(spops_host_alloc(ctx, source_bytes, 1));
    if (source == nullptr) return SPOPS_STATUS_OUT_OF_MEMORY;
    snprintf(source, source_bytes, "%s%s\"\n%s\n", prefix, desc->name, desc->cuda_source);
    snprintf(option, sizeof option, "--gpu-architecture=sm_%d", (int)ctx->info.compute_capability);
    if (api->create_program(&program, source, desc->name, spops_num_embedded_headers,
                            spops_embedded_header_sources,
                            spops_embedded_header_names) != NVRTC_SUCCESS) {
        status = spops_fail(ctx, SPOPS_STATUS_COMPILE_FAILED,
                            "reduce_create: nvrtcCreateProgram failed");
        goto done;
    }
    for (int i = 0; i < count; ++i) {
        name_kernel(desc->cuda_op, i, name, sizeof name);
        api->add_name(program, name);
    }
    if (api->compile(program, 3, options) != NVRTC_SUCCESS) {
        if (!quiet) status = report_log(ctx, api, desc->name, program);
        goto done;
    }
    if (api->cubin_size(program, &cubin_bytes) != NVRTC_SUCCESS || cubin_bytes == 0) {
        status = spops_fail(ctx, SPOPS_STATUS_COMPILE_FAILED,
                            "reduce_create: NVRTC made no code for sm_%d",
                            (int)ctx->info.compute_capability);
        goto done;
    }
    cubin = static_cast<char *>(spops_host_alloc(ctx, cubin_bytes, 1));
    if (cubin == nullptr) {
        status = SPOPS_STATUS_OUT_OF_MEMORY;
        goto done;
    }
    if (api->cubin(program, cubin) != NVRTC_SUCCESS) {
        status =
            spops_fail(ctx, SPOPS_STATUS_COMPILE_FAILED, "reduce_create: nvrtcGetCUBIN failed");
        goto done;
    }
    SPOPS_TRY_GOTO(spops_cuda_status(ctx, "reduce_create: cudaLibraryLoadData",
                                     (int)cudaLibraryLoadData(&kernels->library, cubin, nullptr,
                                                              nullptr, 0, nullptr, nullptr, 0)),
                   status, done);
    SPOPS_TRY_GOTO(find_kernels(ctx, api, program, desc->cuda_op, count, kernels), status, done);
    *ok = true;

done:
    if (program != nullptr) api->destroy_program(&program);
    spops_host_free(ctx, cubin, cubin_bytes, 1);
    spops_host_free(ctx, source, source_bytes, 1);
    return status;
}

} // namespace

extern "C" spops_status spops_cuda_reduce_create(spops_context *ctx,
                                                 const spops_reduce_create_args *args)
{
    spops_custom_reduce *custom = args->custom;
    spops_status status = SPOPS_STATUS_OK;
    nvrtc_api api;
    bool ok = false;
    custom_kernels *kernels = nullptr;
    SPOPS_TRY(open_nvrtc(ctx, &api));
    kernels = static_cast<custom_kernels *>(spops_host_alloc(ctx, 1, sizeof *kernels));
    if (kernels == nullptr) {
        status = SPOPS_STATUS_OUT_OF_MEMORY;
        goto fail;
    }
    custom->kernels = kernels;
    // With gradients first; a struct without grad gets the forward kernels alone.
    SPOPS_TRY_GOTO(compile_kernels(ctx, &api, &custom->desc, num_kernels, true, kernels, &ok),
                   status, fail);
    custom->has_grad = ok;
    if (!ok)
        SPOPS_TRY_GOTO(
            compile_kernels(ctx, &api, &custom->desc, num_dtypes * 2, false, kernels, &ok), status,
            fail);
    dlclose(api.handle);
    return SPOPS_STATUS_OK;

fail:
    dlclose(api.handle);
    (void)spops_cuda_reduce_destroy(ctx, args);
    return status;
}

extern "C" spops_status spops_cuda_reduce_destroy(spops_context *ctx,
                                                  const spops_reduce_create_args *args)
{
    custom_kernels *kernels = static_cast<custom_kernels *>(args->custom->kernels);
    if (kernels == nullptr) return SPOPS_STATUS_OK;
    if (kernels->library != nullptr) cudaLibraryUnload(kernels->library);
    spops_host_free(ctx, kernels, 1, sizeof *kernels);
    args->custom->kernels = nullptr;
    return SPOPS_STATUS_OK;
}

spops_status spops_custom_launch(spops_context *ctx, const spops_custom_reduce *custom,
                                 enum spops_custom_kernel kernel, spops_dtype dtype, bool wide,
                                 dim3 grid, void *params)
{
    const custom_kernels *kernels = static_cast<const custom_kernels *>(custom->kernels);
    const cudaKernel_t function = kernels->kernels[kernel_index(kernel, dtype, wide)];
    void *arguments[] = {params};
    if (grid.x == 0) return SPOPS_STATUS_OK;
    return spops_cuda_status(ctx, "custom reduction: cudaLaunchKernel",
                             (int)cudaLaunchKernel(reinterpret_cast<const void *>(function), grid,
                                                   dim3(SPOPS_CUSTOM_THREADS), arguments, 0,
                                                   spops::stream_of(ctx)));
}
