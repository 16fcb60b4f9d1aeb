// SPDX-License-Identifier: Apache-2.0
#ifndef SPOPS_TESTS_PLAIN_ALLOC_H
#define SPOPS_TESTS_PLAIN_ALLOC_H

#include <stdlib.h>

#define cr_calloc calloc
#define cr_free   free

#endif
