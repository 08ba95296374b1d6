/* Sums and sorts by Thrust, which comes with the compiler: large templates, and launches whose shapes
 * depend on what the runtime says about kernels and the device. */
#include "check.h"
#include <algorithm>
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/sort.h>

int main(int argc, char **argv) {
    unsigned seed = 6;
    thrust::host_vector<int> host(argc > 1 ? atoi(argv[1]) : 10000);
    for (auto &value : host) value = draw(&seed, 1 << 20);
    try {
        thrust::device_vector<int> device = host;
        long long sum = thrust::reduce(device.begin(), device.end(), 0ll), wanted = 0;
        for (int value : host) wanted += value;
        compare("sum", 0, sum, wanted, 0);
        thrust::sort(device.begin(), device.end());
        thrust::host_vector<int> sorted = device;
        std::sort(host.begin(), host.end());
        for (int i = 0; i < (int)host.size(); i++) compare("place", i, sorted[i], host[i], 0);
    } catch (const std::exception &error) {
        printf("%s\n", error.what());
        return 1;
    }
    printf("thrust: %d numbers summed and sorted\n", (int)host.size());
    return 0;
}
