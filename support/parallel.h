// SPDX-License-Identifier: Apache-2.0
// Loops over all processors for what stands on the library, by threads that last as long as the loop.
#ifndef SPOPS_SUPPORT_PARALLEL_H
#define SPOPS_SUPPORT_PARALLEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*parallel_body)(const void *work, int64_t begin, int64_t end);

// body(work, begin, end) for ranges of at most `grain` of 0 .. n - 1; 0: one range a thread. Which
// thread takes which, and when, is up to the moment. Where no thread can be started the caller's does
// the work.
void parallel_for(int64_t n, int64_t grain, parallel_body body, const void *work);

// With how many threads from now on; 0, as in the beginning: the processors that this process may use.
void parallel_set_threads(int num_threads);

#ifdef __cplusplus
}
#endif

#endif
