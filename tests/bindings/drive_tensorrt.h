// SPDX-License-Identifier: Apache-2.0
// Plugins of TensorRT, driven as TensorRT does, behind a C interface: what tests load. The library of
// this interface is built where TensorRT's headers are; programs that use it need none.
#ifndef SPOPS_TESTS_DRIVE_TENSORRT_H
#define SPOPS_TESTS_DRIVE_TENSORRT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DRIVE_API __attribute__((visibility("default")))

// dtype: of spops_node_dtype; a tensor is without gaps.
typedef struct drive_tensor {
    int32_t dtype, num_dims;
    int64_t dims[8];
    void *data;
} drive_tensor;

// type: of spops_node_data.
typedef struct drive_field {
    const char *name;
    int32_t type, length;
    const void *data;
} drive_field;

// Loads a library of plugins, by the registry of TensorRT's (lean) runtime, or, without one (NULL), by
// its own functions. Returns how many creators it has, -1 for a failure.
DRIVE_API int32_t drive_open(const char *plugins, const char *runtime);

// The creator's name, and the names of its fields separated by spaces; NULL: there is none.
DRIVE_API const char *drive_creator(int32_t index, const char **fields);

// A plugin as an execution context has it: created to build, cloned, written as fields, created from
// these to run, and attached. NULL: refused.
DRIVE_API void *drive_create(const char *name, const drive_field *fields, int32_t num_fields);
DRIVE_API void drive_destroy(void *plugin);
DRIVE_API int32_t drive_num_outputs(void *plugin);
DRIVE_API int32_t drive_aliased(void *plugin, int32_t output);

// Sets dtypes and shapes of outputs. symbolic: sizes of inputs are not known to the plugin, as in an
// engine of dynamic shapes. 0, or -1 for a failure.
DRIVE_API int32_t drive_shapes(void *plugin, const drive_tensor *inputs, int32_t num_inputs,
                               drive_tensor *outputs, int32_t num_outputs, int32_t symbolic);

// Whether the plugin takes these dtypes, asked as a builder asks; format: of nvinfer1::TensorFormat.
DRIVE_API int32_t drive_supports(void *plugin, const drive_tensor *inputs, int32_t num_inputs,
                                 const drive_tensor *outputs, int32_t num_outputs, int32_t format);

DRIVE_API size_t drive_workspace(void *plugin, const drive_tensor *inputs, int32_t num_inputs,
                                 const drive_tensor *outputs, int32_t num_outputs);

// A change of shapes, which must come before the first enqueue with them.
DRIVE_API int32_t drive_change(void *plugin, const drive_tensor *inputs, int32_t num_inputs,
                               const drive_tensor *outputs, int32_t num_outputs);
DRIVE_API int32_t drive_enqueue(void *plugin, const drive_tensor *inputs, int32_t num_inputs,
                                const drive_tensor *outputs, int32_t num_outputs, void *workspace,
                                void *stream);

// The last line that was logged; "" where there was none since the last call of drive_error.
DRIVE_API const char *drive_error(void);

// A function of the libspops that the plugins run on, which is another one than a test's own.
DRIVE_API void *drive_function(const char *name);

#ifdef __cplusplus
}
#endif

#endif
