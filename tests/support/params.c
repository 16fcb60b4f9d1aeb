#include "tests/support/params.h"

struct criterion_test_params every_backend(void)
{
    static struct backend_param params[] = {{SPOPS_BACKEND_CPU}, {SPOPS_BACKEND_CUDA}};
    return cr_make_param_array(struct backend_param, params, 2);
}

struct criterion_test_params every_launch(void)
{
    static struct launch_param params[] = {{SPOPS_BACKEND_CPU, LAUNCH_DEFAULT},
                                           {SPOPS_BACKEND_CUDA, LAUNCH_STREAM},
                                           {SPOPS_BACKEND_CUDA, LAUNCH_CAPTURED}};
    return cr_make_param_array(struct launch_param, params, 3);
}
