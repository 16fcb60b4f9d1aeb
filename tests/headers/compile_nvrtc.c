// SPDX-License-Identifier: Apache-2.0
// The device headers that the library carries compile with NVRTC as they are, for the oldest and
// the newest architecture that it knows, with nothing else on the include path. Needs no GPU. Ends
// with 77 (skipped) where there is no NVRTC.
#include <dlfcn.h>
#include <nvrtc.h>
#include <stdio.h>
#include <stdlib.h>

extern const char *const spops_embedded_header_names[];
extern const char *const spops_embedded_header_sources[];
extern const int spops_num_embedded_headers;

static const char source[] =
    "#include \"spops/device/segreduce_backward.cuh\"\n"
    "struct second_moment {\n"
    "    struct state { float sum; };\n"
    "    static constexpr bool uses_term = false;\n"
    "    static constexpr bool has_arg = false;\n"
    "    static __device__ state identity() { state a = {0.0f}; return a; }\n"
    "    static __device__ state lift(float v, int) { state a = {v * v}; return a; }\n"
    "    static __device__ state combine(state a, state b) { a.sum += b.sum; return a; }\n"
    "    static __device__ float finalize(state a, long long n) { return a.sum / (float)n; }\n"
    "    static __device__ float grad(float v, int, state, long long n)\n"
    "    {\n"
    "        return 2.0f * v / (float)n;\n"
    "    }\n"
    "};\n";
static const char *const kernels[] = {
    "&spops::seggrad_kernel<256, second_moment, float, 4>",
    "&spops::seggrad_kernel<256, second_moment, spops::bf16, 8>",
    "&spops::segdot_kernel<256, second_moment, spops::f16, 1>",
};

static void *open_nvrtc(void)
{
    char name[32];
    snprintf(name, sizeof name, "libnvrtc.so.%d", CUDART_MAJOR);
    void *library = dlopen(name, RTLD_NOW);
    return library != NULL ? library : dlopen(NVRTC_FALLBACK, RTLD_NOW);
}

static int compile(void *library, int architecture)
{
    nvrtcResult (*create)(nvrtcProgram *, const char *, const char *, int, const char *const *,
                          const char *const *);
    nvrtcResult (*add_name)(nvrtcProgram, const char *);
    nvrtcResult (*run)(nvrtcProgram, int, const char *const *);
    nvrtcResult (*log_size)(nvrtcProgram, size_t *);
    nvrtcResult (*get_log)(nvrtcProgram, char *);
    nvrtcResult (*cubin_size)(nvrtcProgram, size_t *);
    nvrtcProgram program;
    char option[64];
    size_t bytes = 0;
    *(void **)&create = dlsym(library, "nvrtcCreateProgram");
    *(void **)&add_name = dlsym(library, "nvrtcAddNameExpression");
    *(void **)&run = dlsym(library, "nvrtcCompileProgram");
    *(void **)&log_size = dlsym(library, "nvrtcGetProgramLogSize");
    *(void **)&get_log = dlsym(library, "nvrtcGetProgramLog");
    *(void **)&cubin_size = dlsym(library, "nvrtcGetCUBINSize");
    if (!create || !add_name || !run || !log_size || !get_log || !cubin_size) {
        fprintf(stderr, "libnvrtc lacks a function\n");
        return 1;
    }
    snprintf(option, sizeof option, "--gpu-architecture=sm_%d", architecture);
    const char *const options[] = {"--std=c++17", option};
    if (create(&program, source, "second_moment", spops_num_embedded_headers,
               spops_embedded_header_sources, spops_embedded_header_names) != NVRTC_SUCCESS)
        return 1;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; ++i)
        add_name(program, kernels[i]);
    const nvrtcResult result = run(program, 2, options);
    if (result != NVRTC_SUCCESS && log_size(program, &bytes) == NVRTC_SUCCESS) {
        char *log = malloc(bytes + 1);
        if (log != NULL && get_log(program, log) == NVRTC_SUCCESS) fputs(log, stderr);
        free(log);
    }
    if (result == NVRTC_SUCCESS) {
        cubin_size(program, &bytes);
        printf("sm_%d: %zu bytes of code\n", architecture, bytes);
    }
    return result != NVRTC_SUCCESS || bytes == 0;
}

int main(void)
{
    void *library = open_nvrtc();
    nvrtcResult (*num_architectures)(int *);
    nvrtcResult (*get_architectures)(int *);
    int count = 0, architectures[64];
    if (library == NULL) {
        printf("skipped: %s\n", dlerror());
        return 77;
    }
    *(void **)&num_architectures = dlsym(library, "nvrtcGetNumSupportedArchs");
    *(void **)&get_architectures = dlsym(library, "nvrtcGetSupportedArchs");
    if (!num_architectures || !get_architectures || num_architectures(&count) != NVRTC_SUCCESS ||
        count < 1 || count > 64 || get_architectures(architectures) != NVRTC_SUCCESS) {
        fprintf(stderr, "libnvrtc does not say what it compiles for\n");
        return 1;
    }
    // Ascending. The oldest one of CUDA 12 is older than what is supported here.
    const int oldest = architectures[0] < 75 ? 75 : architectures[0];
    return compile(library, oldest) | compile(library, architectures[count - 1]);
}
