// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of files of points. What has no start that is known is read as a .bin.
#include "fuzz.h"
#include "support/cloud_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    unsigned char *copy = malloc(bytes + 1);
    char error[512] = "";
    cloud_file cloud;
    FUZZ_REQUIRE(copy != NULL, "no memory for %zu bytes", bytes);
    if (bytes > 0) memcpy(copy, data, bytes);
    copy[bytes] = 0;
    if (bytes >= 6 && memcmp(copy, "\x93NUMPY", 6) == 0) copy[0] = 0; // only files are read as .npy
    if (cloud_file_parse("a.bin", copy, bytes, &cloud, error, sizeof error)) {
        FUZZ_REQUIRE(cloud.cols >= 3 && cloud.num_points >= 0 &&
                         (uint64_t)cloud.num_points <= (uint64_t)bytes * 100,
                     "%lld points from %zu bytes", (long long)cloud.num_points, bytes);
        FUZZ_REQUIRE(cloud.intensity_col < cloud.cols, "%lld", (long long)cloud.intensity_col);
    } else
        FUZZ_REQUIRE(error[0] != 0, "refused without a message");
    cloud_file_free(&cloud);
    free(copy);
    return 0;
}
