// Parameters that many tests run over: every backend, and every backend with the launches that
// matter to it. For ParameterizedTestParameters.
#ifndef SPOPS_TESTS_SUPPORT_PARAMS_H
#define SPOPS_TESTS_SUPPORT_PARAMS_H

#include <criterion/parameterized.h>

#include "tests/support/launch.h"

struct backend_param {
    int backend;
};
struct criterion_test_params every_backend(void);

struct launch_param {
    int backend, launch;
};
struct criterion_test_params every_launch(void);

#endif
