// SPDX-License-Identifier: Apache-2.0
// load_library LIBSPOPS_SO: the library loads with dlopen on any host, with or without a GPU, and
// then opens a CPU context.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "spops/spops.h"

static void *find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL) fprintf(stderr, "%s is not exported\n", name);
    return symbol;
}

int main(int argc, char **argv)
{
    const char *(*version)(void);
    spops_status (*create)(const spops_context_options *, spops_context **);
    spops_backend_kind (*backend)(const spops_context *);
    void (*destroy)(spops_context *);
    spops_context_options options = spops_context_options_default();
    spops_context *ctx = NULL;
    char expected[32];

    if (argc != 2) {
        fprintf(stderr, "usage: load_library LIBSPOPS_SO\n");
        return 2;
    }
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&version = find(library, "spops_version");
    *(void **)&create = find(library, "spops_context_create");
    *(void **)&backend = find(library, "spops_context_backend");
    *(void **)&destroy = find(library, "spops_context_destroy");
    if (version == NULL || create == NULL || backend == NULL || destroy == NULL) return 1;
    snprintf(expected, sizeof expected, "%d.%d.%d", SPOPS_VERSION_MAJOR, SPOPS_VERSION_MINOR,
             SPOPS_VERSION_PATCH);
    if (strcmp(version(), expected) != 0) {
        fprintf(stderr, "spops_version() is %s, the headers say %s\n", version(), expected);
        return 1;
    }
    options.backend = SPOPS_BACKEND_CPU;
    if (create(&options, &ctx) != SPOPS_STATUS_OK || backend(ctx) != SPOPS_BACKEND_CPU) {
        fprintf(stderr, "no CPU context\n");
        return 1;
    }
    destroy(ctx);
    printf("spops %s loaded and opened\n", version());
    return 0;
}
