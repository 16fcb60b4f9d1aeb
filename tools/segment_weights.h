// SPDX-License-Identifier: Apache-2.0
#ifndef SPOPS_TOOLS_SEGMENT_WEIGHTS_H
#define SPOPS_TOOLS_SEGMENT_WEIGHTS_H

// A checkpoint of examples/segment.
extern const unsigned char segment_weights[], segment_weights_end[];

#endif
