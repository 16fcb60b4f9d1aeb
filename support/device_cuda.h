// SPDX-License-Identifier: Apache-2.0
// The CUDA half of support/device.h: what device.c calls. device_cuda.c implements it; a build
// without CUDA links device_none.c instead, in which everything answers "no".
#ifndef SPOPS_SUPPORT_DEVICE_CUDA_H
#define SPOPS_SUPPORT_DEVICE_CUDA_H

#include "support/device.h"

#ifdef __cplusplus
extern "C" {
#endif

bool device_cuda_exists(void);
int32_t device_cuda_count(void);
bool device_cuda_use(int32_t device);
bool device_cuda_alloc(size_t bytes, void **ptr);
void device_cuda_free(void *ptr);
bool device_cuda_upload(void *dst, const void *src, size_t bytes);
bool device_cuda_download(void *dst, const void *src, size_t bytes);
bool device_cuda_fill(void *dst, int byte, size_t bytes);
bool device_cuda_stream_create(void **stream);
void device_cuda_stream_destroy(void *stream);
bool device_cuda_stream_wait(void *stream);
bool device_cuda_time(void *stream, void (*enqueue)(void *user), void *user, bool cold,
                      int num_samples, device_timing *timing);
bool device_cuda_time_together(int num, void *const *streams, void (*enqueue)(void *user),
                               void *const *users, bool cold, int num_samples,
                               device_timing *timing);
bool device_cuda_copy_rate(double *bytes_per_s);
bool device_cuda_cache_rate(double *bytes_per_s);

// In device_read.cu: read `bytes` bytes `passes` times, past L1.
bool device_cuda_read(const void *data, size_t bytes, int passes, int num_processors, void *stream);

// For both halves, in device.c. Keeps the message for device_error() and returns false.
__attribute__((format(printf, 1, 2))) bool device_fail(const char *format, ...);

#ifdef __cplusplus
}
#endif

#endif
