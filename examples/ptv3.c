// SPDX-License-Identifier: Apache-2.0
/*
 * Point Transformer V3 on the points of a LiDAR scan: from points to the scores of every voxel, and a step of
 * training, each on the CPU or as one CUDA Graph that is captured once and launched for a scan after the
 * other, whatever their sizes. Read it in this order:
 *
 *     ptv3/network.h, .c          the layers
 *     ptv3/engine.h, .c           voxels, levels, maps, patches: what a frame needs before its layers
 *     networks/tape.h, .c         layers forward and backward, their memory; tape_build.c: parameters
 *     networks/tape_engine.h, .c  a frame: points, parts, layers, gradients
 *     networks/tape_program.c     options, times beside floors, checks
 *     ptv3/reference.c, networks/tape_reference.c   the same in FP64
 */
#include "networks/tape_program.h"
#include "ptv3/engine.h"

int main(int argc, char **argv)
{
    return tape_program(&ptv3_network, argc, argv);
}
