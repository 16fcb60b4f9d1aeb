// SPDX-License-Identifier: Apache-2.0
/*
 * DSVT's backbone on the points of a LiDAR scan: from points to features of every pillar, and a step of
 * training, each on the CPU or as one CUDA Graph for scans of any size. Read it in this order:
 *
 *     dsvt/network.h, .c          the layers
 *     dsvt/engine.h, .c           pillars and sets: what a frame needs before its layers
 *     networks/tape.h, .c         layers forward and backward, their memory; tape_build.c: parameters
 *     networks/tape_engine.h, .c  a frame: points, parts, layers, gradients
 *     networks/tape_program.c     options, times beside floors, checks
 *     dsvt/reference.c, networks/tape_reference.c   the same in FP64
 */
#include "dsvt/engine.h"
#include "networks/tape_program.h"

int main(int argc, char **argv)
{
    return tape_program(&dsvt_network, argc, argv);
}
