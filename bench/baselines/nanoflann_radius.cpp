// SPDX-License-Identifier: Apache-2.0
// Neighbours of every point of a cloud within a radius by nanoflann (Debian: libnanoflann-dev), as python/bench/cpu.py times it.
//
//     nanoflann_radius POINTS.f32 RADIUS THREADS RUNS      prints "pairs tree_us lists_us" for each run
//
// The tree is built by one thread, as release 1.4 does; THREADS threads search equal shares of the points and keep lists of rows.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nanoflann.hpp>
#include <thread>
#include <vector>

struct Cloud {
    std::vector<float> xyz;
    size_t kdtree_get_point_count() const { return xyz.size() / 3; }
    float kdtree_get_pt(size_t i, size_t axis) const { return xyz[3 * i + axis]; }
    template <class Box> bool kdtree_get_bbox(Box &) const { return false; }
};

using Tree = nanoflann::KDTreeSingleIndexAdaptor<nanoflann::L2_Simple_Adaptor<float, Cloud>, Cloud,
                                                 3, uint32_t>;

static double us_since(std::chrono::steady_clock::time_point begin)
{
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
        .count();
}

static void search(const Tree &tree, const Cloud &cloud, float radius_m, size_t begin, size_t end,
                   std::vector<std::vector<uint32_t>> &lists)
{
    nanoflann::SearchParams unordered(0, 0.0F, false);
    std::vector<std::pair<uint32_t, float>> found;
    for (size_t i = begin; i < end; i++) {
        tree.radiusSearch(&cloud.xyz[3 * i], radius_m * radius_m, found, unordered);
        lists[i].reserve(found.size());
        for (const auto &pair : found) {
            lists[i].push_back(pair.first);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        std::fprintf(stderr, "usage: nanoflann_radius POINTS.f32 RADIUS THREADS RUNS\n");
        return 2;
    }
    std::ifstream file(argv[1], std::ios::binary | std::ios::ate);
    Cloud cloud;
    cloud.xyz.resize(file ? static_cast<size_t>(file.tellg()) / sizeof(float) : 0);
    file.seekg(0);
    file.read(reinterpret_cast<char *>(cloud.xyz.data()),
              static_cast<std::streamsize>(cloud.xyz.size() * sizeof(float)));
    const size_t num_points = cloud.kdtree_get_point_count();
    const size_t num_threads = std::strtoul(argv[3], nullptr, 10);
    const float radius_m = std::strtof(argv[2], nullptr);
    if (!file || num_points == 0 || num_threads == 0 || !(radius_m > 0)) {
        std::fprintf(stderr, "nanoflann_radius: no points, threads or radius\n");
        return 2;
    }
    for (unsigned long run = std::strtoul(argv[4], nullptr, 10); run > 0; run--) {
        auto begin = std::chrono::steady_clock::now();
        Tree tree(3, cloud, nanoflann::KDTreeSingleIndexAdaptorParams(10));
        tree.buildIndex();
        const double tree_us = us_since(begin);
        begin = std::chrono::steady_clock::now();
        std::vector<std::vector<uint32_t>> lists(num_points);
        std::vector<std::thread> threads;
        for (size_t t = 0; t < num_threads; t++) {
            threads.emplace_back([&, t] {
                search(tree, cloud, radius_m, num_points * t / num_threads,
                       num_points * (t + 1) / num_threads, lists);
            });
        }
        for (auto &thread : threads) {
            thread.join();
        }
        const double lists_us = us_since(begin);
        size_t num_pairs = 0;
        for (const auto &list : lists) {
            num_pairs += list.size();
        }
        std::printf("%zu %.1f %.1f\n", num_pairs, tree_us, lists_us);
    }
    return 0;
}
