// SPDX-License-Identifier: Apache-2.0
// make_model FILE.onnx: CenterPoint's encoder with drawn weights, as libspconv's exporter writes it.
#include <stdio.h>

#include "tests/support/centerpoint_file.h"

int main(int argc, char **argv)
{
    network net;
    onnx_file file;
    FILE *out = argc == 2 ? fopen(argv[1], "wb") : NULL;
    if (out == NULL) {
        fprintf(stderr, "usage: make_model FILE.onnx\n");
        return 2;
    }
    network_create(&net);
    int failed = network_generate(&net);
    if (!failed) {
        centerpoint_file_put(&file, &net);
        failed = fwrite(file.model.data, 1, file.model.num, out) != file.model.num;
        onnx_file_free(&file);
    }
    network_destroy(&net);
    return fclose(out) != 0 || failed;
}
