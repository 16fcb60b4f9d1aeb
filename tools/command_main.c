// Finds the command that is asked for.
#include <stdio.h>
#include <string.h>

#include "tools/command.h"
#ifdef SPOPS_WITH_BENCH
#include "bench/bench.h"
#endif

static const char usage[] =
    "usage: spops COMMAND [OPTIONS]\n"
    "\n"
    "  info    version, build, backends and devices\n"
    "  demo    simulate a street, see it with six cameras, pool it, write pictures\n"
    "  plan    look into a scatter map: sizes, balance, memory regime, floor\n"
    "  bench   measure the kernels beside baselines and the floor\n"
    "\n"
    "'spops COMMAND --help' says more about a command.\n";

#ifdef SPOPS_WITH_BENCH
static int command_bench(int argc, char **argv)
{
    char name[] = "spops bench";
    argv[0] = name;
    return bench_main(argc, argv);
}
#else
static int command_bench(int argc, char **argv)
{
    (void)argc, (void)argv;
    return command_fail("spops bench",
                        "this build has no benchmarks; configure with SPOPS_BENCH=ON");
}
#endif

int command_main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } commands[] = {{"info", command_info},
                    {"demo", command_demo},
                    {"plan", command_plan},
                    {"bench", command_bench}};
    if (argc < 2) {
        fputs(usage, stderr);
        return COMMAND_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        fputs(usage, stdout);
        return COMMAND_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("spops %s\n", spops_version());
        return COMMAND_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; ++i)
        if (strcmp(name, commands[i].name) == 0) {
            const int status = commands[i].run(argc - 1, argv + 1);
            if (fflush(stdout) != 0 && status == COMMAND_OK)
                return command_fail("spops", "standard output cannot be written");
            return status;
        }
    fprintf(stderr, "spops: unknown command '%s'\nTry 'spops --help'.\n", name);
    return COMMAND_USAGE;
}
