/* Breadth-first search: two kernels for each level, then a flag is copied back. */
#include "check.h"
#include <vector>

struct Node {
    int first, edges;
};

__global__ void visit(const Node *nodes, const int *edges, const bool *frontier, bool *next, const bool *visited,
                      int *cost, int count) {
    int node = blockIdx.x * blockDim.x + threadIdx.x;
    if (node >= count || !frontier[node]) return;
    for (int i = 0; i < nodes[node].edges; i++) {
        int to = edges[nodes[node].first + i];
        if (!visited[to]) {
            cost[to] = cost[node] + 1;
            next[to] = true;
        }
    }
}

__global__ void advance(bool *frontier, bool *next, bool *visited, bool *more, int count) {
    int node = blockIdx.x * blockDim.x + threadIdx.x;
    if (node >= count) return;
    frontier[node] = next[node];
    if (next[node]) {
        visited[node] = true;
        next[node] = false;
        *more = true;
    }
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 4096;
    unsigned seed = 1;
    std::vector<Node> nodes(count);
    std::vector<int> edges;
    for (int i = 0; i < count; i++) {
        nodes[i] = {(int)edges.size(), 1 + (int)draw(&seed, 5)};
        for (int j = 0; j < nodes[i].edges; j++) edges.push_back(draw(&seed, count));
    }
    std::vector<int> wanted(count, -1), queue{0};
    wanted[0] = 0;
    for (size_t head = 0; head < queue.size(); head++) {
        Node node = nodes[queue[head]];
        for (int j = node.first; j < node.first + node.edges; j++)
            if (wanted[edges[j]] < 0) wanted[edges[j]] = wanted[queue[head]] + 1, queue.push_back(edges[j]);
    }

    Node *d_nodes;
    int *d_edges, *d_cost;
    bool *d_frontier, *d_next, *d_visited, *d_more, start = true;
    std::vector<int> cost(count, -1);
    cost[0] = 0;
    OK(cudaMalloc(&d_nodes, count * sizeof(Node)));
    OK(cudaMalloc(&d_edges, edges.size() * sizeof(int)));
    OK(cudaMalloc(&d_cost, count * sizeof(int)));
    OK(cudaMalloc(&d_frontier, count));
    OK(cudaMalloc(&d_next, count));
    OK(cudaMalloc(&d_visited, count));
    OK(cudaMalloc(&d_more, 1));
    OK(cudaMemcpy(d_nodes, nodes.data(), count * sizeof(Node), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(d_edges, edges.data(), edges.size() * sizeof(int), cudaMemcpyHostToDevice));
    OK(cudaMemcpy(d_cost, cost.data(), count * sizeof(int), cudaMemcpyHostToDevice));
    OK(cudaMemset(d_frontier, 0, count));
    OK(cudaMemset(d_next, 0, count));
    OK(cudaMemset(d_visited, 0, count));
    OK(cudaMemcpy(d_frontier, &start, 1, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(d_visited, &start, 1, cudaMemcpyHostToDevice));
    /* Libraries such as CUB choose the shape of a launch by a kernel's attributes. */
    cudaFuncAttributes facts;
    OK(cudaFuncGetAttributes(&facts, visit));
    compare("most threads", 0, facts.maxThreadsPerBlock, 1024, 0);
    int levels = 0, blocks = (count + 255) / 256;
    for (bool more = true; more; levels++) {
        more = false;
        OK(cudaMemcpy(d_more, &more, 1, cudaMemcpyHostToDevice));
        visit<<<blocks, 256>>>(d_nodes, d_edges, d_frontier, d_next, d_visited, d_cost, count);
        advance<<<blocks, 256>>>(d_frontier, d_next, d_visited, d_more, count);
        OK(cudaGetLastError());
        OK(cudaMemcpy(&more, d_more, 1, cudaMemcpyDeviceToHost));
    }
    OK(cudaMemcpy(cost.data(), d_cost, count * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < count; i++) compare("cost", i, cost[i], wanted[i], 0);
    printf("bfs: %d nodes, %d reached, %d levels\n", count, (int)queue.size(), levels);
    OK(cudaDeviceReset());
    return 0;
}
