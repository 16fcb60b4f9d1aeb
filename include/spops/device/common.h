/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all device headers share: integers of fixed width, also under NVRTC, which has no stdint.h,
 * and how a function of both C and CUDA C++ is declared.
 */
#ifndef SPOPS_DEVICE_COMMON_H
#define SPOPS_DEVICE_COMMON_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#else
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
#endif

#ifdef __CUDACC__
#define SPOPS_HD static __host__ __device__ __forceinline__
#else
#define SPOPS_HD static inline
#endif

#endif
