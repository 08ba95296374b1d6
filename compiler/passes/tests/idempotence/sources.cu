// CUDA C sources of the kernels in this folder. `make.py` splits this file at the lines of dashes and
// compiles each part by itself.
//
// label   whether a block may run again from its start after it was stopped at any point; the correct
//         answer, whatever the analysis finds:
//         always | disjoint READ WRITTEN, … (if these parameters do not overlap) | never
// launch  GRID BLOCK ARGUMENT…, where an argument is
//         buf:BYTES (small random integers), idx:BYTES:N (random u32 below N), idx64:BYTES:N,
//         zero:BYTES, u32:V, u64:V, f32:V, table:BUFFER,…,
//         or struct[ARGUMENT …] for a parameter passed by value

//---- copy
// label: disjoint a out
// why: reads one buffer and writes another
// launch: 4 32 buf:512 zero:512 u32:128
__global__ void copy(const float *a, float *out, int n) {
    int i = bx() * bdx() + tx();
    if (i < n) out[i] = a[i];
}
//---- saxpy
// label: disjoint x z, y z
// why: two inputs, one output
// launch: 4 32 buf:512 buf:512 zero:512 f32:2.5
__global__ void saxpy(const float *x, const float *y, float *z, float a) {
    int i = bx() * bdx() + tx();
    z[i] = a * x[i] + y[i];
}
//---- saxpy_in_place
// label: never
// why: y is read and then overwritten
// launch: 4 32 buf:512 buf:512 f32:2.5
__global__ void saxpy_in_place(const float *x, float *y, float a) {
    int i = bx() * bdx() + tx();
    y[i] = a * x[i] + y[i];
}
//---- scale_in_place
// label: never
// why: a second run scales what the first one has scaled
// launch: 4 32 buf:512 f32:3
__global__ void scale_in_place(float *x, float a) {
    int i = bx() * bdx() + tx();
    x[i] *= a;
}
//---- relu_in_place
// label: always
// why: in place, but applying it twice changes nothing; the proof needs arithmetic and not addresses
// launch: 4 32 buf:512
__global__ void relu_in_place(int *x) {
    int i = bx() * bdx() + tx();
    x[i] = x[i] > 7 ? x[i] : 7;
}
//---- fill
// label: always
// why: reads nothing
// launch: 4 32 zero:512 u32:128 f32:1.5
__global__ void fill(float *x, int n, float v) {
    for (int i = bx() * bdx() + tx(); i < n; i += bdx() * gdx()) x[i] = v;
}
//---- mandelbrot
// label: always
// why: computes from coordinates alone
// launch: 4 32 zero:512
__global__ void mandelbrot(int *out) {
    int i = bx() * bdx() + tx();
    float cx = i * 0.01f - 2, cy = i * 0.003f, x = 0, y = 0;
    int k = 0;
    for (; k < 50 && x * x + y * y < 4; k++) { float t = x * x - y * y + cx; y = 2 * x * y + cy; x = t; }
    out[i] = k;
}
//---- count_atomic
// label: never
// why: a second run counts again
// launch: 4 32 buf:512 zero:4
__global__ void count_atomic(const int *a, int *count) {
    int i = bx() * bdx() + tx();
    if (a[i] & 1) __nvvm_atom_add_gen_i(count, 1);
}
//---- histogram_global
// label: never
// why: atomics in global memory
// launch: 4 32 buf:512 zero:256
__global__ void histogram_global(const unsigned *a, int *bins) {
    __nvvm_atom_add_gen_i(bins + (a[bx() * bdx() + tx()] & 63), 1);
}
//---- histogram_shared_merged
// label: never
// why: block histograms are merged by atomics in global memory
// launch: 4 32 buf:512 zero:128
__global__ void histogram_shared_merged(const unsigned *a, int *bins) {
    __shared__ int h[32];
    h[tx()] = 0;
    __syncthreads();
    shared_add(&h[a[bx() * bdx() + tx()] & 31], 1);
    __syncthreads();
    __nvvm_atom_add_gen_i(bins + tx(), h[tx()]);
}
//---- histogram_per_block
// label: disjoint a bins
// why: atomics in shared memory only; each block stores its own histogram
// launch: 4 32 buf:512 zero:512
__global__ void histogram_per_block(const unsigned *a, int *bins) {
    __shared__ int h[32];
    h[tx()] = 0;
    __syncthreads();
    shared_add(&h[a[bx() * bdx() + tx()] & 31], 1);
    __syncthreads();
    bins[bx() * 32 + tx()] = h[tx()];
}
//---- reduce_tree
// label: disjoint a out
// why: a tree in shared memory; thread 0 stores
// launch: 4 64 buf:1024 zero:16
__global__ void reduce_tree(const float *a, float *out) {
    __shared__ float s[64];
    s[tx()] = a[bx() * bdx() + tx()];
    for (int d = 32; d > 0; d >>= 1) {
        __syncthreads();
        if (tx() < d) s[tx()] += s[tx() + d];
    }
    if (tx() == 0) out[bx()] = s[0];
}
//---- reduce_atomic
// label: never
// why: the last step of the reduction is an atomic addition
// launch: 4 64 buf:1024 zero:4
__global__ void reduce_atomic(const float *a, float *out) {
    __shared__ float s[64];
    s[tx()] = a[bx() * bdx() + tx()];
    for (int d = 32; d > 0; d >>= 1) {
        __syncthreads();
        if (tx() < d) s[tx()] += s[tx() + d];
    }
    if (tx() == 0) __nvvm_atom_add_gen_f(out, s[0]);
}
//---- reduce_accumulate
// label: never
// why: one thread adds to what the output holds
// launch: 4 32 buf:512 buf:16
__global__ void reduce_accumulate(const float *a, float *out) {
    if (tx() == 0) {
        float sum = out[bx()];
        for (int i = 0; i < 32; i++) sum += a[bx() * 32 + i];
        out[bx()] = sum;
    }
}
//---- reduce_shuffle
// label: disjoint a out
// why: a warp reduces by shuffles
// launch: 4 32 buf:512 zero:16
__global__ void reduce_shuffle(const int *a, int *out) {
    int v = a[bx() * 32 + tx()];
    for (int d = 16; d > 0; d >>= 1) v += __nvvm_shfl_sync_bfly_i32(-1, v, d, 31);
    if (tx() == 0) out[bx()] = v;
}
//---- scan_block
// label: disjoint a out
// why: a scan in shared memory
// launch: 4 64 buf:1024 zero:1024
__global__ void scan_block(const int *a, int *out) {
    __shared__ int s[2][64];
    int from = 0, t = tx();
    s[0][t] = a[bx() * 64 + t];
    for (int d = 1; d < 64; d *= 2) {
        __syncthreads();
        s[1 - from][t] = s[from][t] + (t >= d ? s[from][t - d] : 0);
        from = 1 - from;
    }
    __syncthreads();
    out[bx() * 64 + t] = s[from][t];
}
//---- scan_in_place
// label: never
// why: the scan goes through global memory in place
// launch: 2 64 buf:512
__global__ void scan_in_place(int *x) {
    int *p = x + bx() * 64;
    for (int d = 1; d < 64; d *= 2) {
        int v = tx() >= d ? p[tx() - d] : 0;
        __syncthreads();
        p[tx()] += v;
        __syncthreads();
    }
}
//---- scan_through_shared_in_place
// label: never
// why: read whole, scanned in shared memory, stored to the same buffer: if stopped among the stores, the input is lost
// launch: 2 64 buf:512
__global__ void scan_through_shared_in_place(int *x) {
    __shared__ int s[64];
    s[tx()] = x[bx() * 64 + tx()];
    __syncthreads();
    int sum = 0;
    for (int i = 0; i <= tx(); i++) sum += s[i];
    x[bx() * 64 + tx()] = sum;
}
//---- stencil
// label: disjoint a out
// why: three points in, one out
// launch: 4 32 buf:520 zero:512
__global__ void stencil(const float *a, float *out) {
    int i = bx() * bdx() + tx();
    out[i] = 0.25f * a[i] + 0.5f * a[i + 1] + 0.25f * a[i + 2];
}
//---- stencil_in_place
// label: never
// why: neighbours are read that the block itself overwrites
// launch: 1 32 buf:136
__global__ void stencil_in_place(float *x) {
    int i = bx() * bdx() + tx();
    float v = 0.25f * x[i] + 0.5f * x[i + 1] + 0.25f * x[i + 2];
    __syncthreads();
    x[i + 1] = v;
}
//---- jacobi_rounds
// label: never
// why: the two buffers are swapped: the second iteration overwrites the input of the first
// launch: 1 32 buf:136 buf:136
__global__ void jacobi_rounds(float *a, float *b) {
    for (int k = 0; k < 2; k++) {
        b[tx() + 1] = 0.5f * (a[tx()] + a[tx() + 2]);
        __syncthreads();
        float *t = a; a = b; b = t;
    }
}
//---- double_buffer_by_parity
// label: disjoint a b, b a
// why: a flag chooses the direction; it is the same for the whole launch
// launch: 4 32 buf:512 buf:512 u32:1
__global__ void double_buffer_by_parity(float *a, float *b, int odd) {
    int i = bx() * bdx() + tx();
    const float *from = odd ? b : a;
    float *to = odd ? a : b;
    to[i] = from[i] * 2;
}
//---- gather
// label: disjoint table out, index out
// why: the index decides where to read, not where to store
// launch: 4 32 buf:256 idx:512:64 zero:512
__global__ void gather(const float *table, const int *index, float *out) {
    int i = bx() * bdx() + tx();
    out[i] = table[index[i]];
}
//---- gather64
// label: disjoint table out, index out
// why: the same with 64-bit indices
// launch: 4 32 buf:256 idx64:1024:64 zero:512
__global__ void gather64(const float *table, const long long *index, float *out) {
    int i = bx() * bdx() + tx();
    out[i] = table[index[i]];
}
//---- gather_bytes
// label: disjoint table out, offset out
// why: a 64-bit offset in bytes is added to a pointer
// launch: 4 32 buf:256 idx64:1024:256 zero:128
__global__ void gather_bytes(const unsigned char *table, const long long *offset, unsigned char *out) {
    int i = bx() * bdx() + tx();
    out[i] = table[offset[i]];
}
//---- scatter
// label: disjoint a out, index out
// why: the index decides where to store, and is only read
// launch: 1 32 buf:128 idx:128:32 zero:128
__global__ void scatter(const float *a, const int *index, float *out) {
    int i = bx() * bdx() + tx();
    out[index[i]] = a[0];
}
//---- scatter_add
// label: never
// why: stores add to what is there
// launch: 1 1 buf:128 idx:128:32 buf:128
__global__ void scatter_add(const float *a, const int *index, float *out) {
    for (int i = 0; i < 8; i++) out[index[i]] += a[i];
}
//---- permute_in_place
// label: never
// why: reads and stores go through one buffer in different order
// launch: 1 32 buf:128 idx:128:32
__global__ void permute_in_place(int *x, const int *index) {
    int v = x[index[tx()]];
    __syncthreads();
    x[tx()] = v;
}
//---- transpose
// label: disjoint a out
// why: a tile in shared memory
// launch: 4 32 buf:4096 zero:4096
__global__ void transpose(const float *a, float *out) {
    __shared__ float tile[8][33];
    for (int r = 0; r < 8; r++) tile[r][tx()] = a[(bx() * 8 + r) * 32 + tx()];
    __syncthreads();
    for (int k = 0; k < 8; k++) { int e = k * 32 + tx(); out[(e / 8) * 32 + bx() * 8 + e % 8] = tile[e % 8][e / 8]; }
}
//---- transpose_in_place
// label: never
// why: a tile is read and stored back to the same place
// launch: 1 32 buf:4096
__global__ void transpose_in_place(float *x) {
    __shared__ float tile[32][33];
    for (int r = 0; r < 32; r++) tile[r][tx()] = x[r * 32 + tx()];
    __syncthreads();
    for (int r = 0; r < 32; r++) x[r * 32 + tx()] = tile[tx()][r];
}
//---- gemm_naive
// label: disjoint a c, b c
// why: the loop reads, the store comes last
// launch: 16 16 buf:1024 buf:1024 zero:1024 u32:16
__global__ void gemm_naive(const float *a, const float *b, float *c, int n) {
    float sum = 0;
    for (int k = 0; k < n; k++) sum += a[bx() * n + k] * b[k * n + tx()];
    c[bx() * n + tx()] = sum;
}
//---- gemm_tiled
// label: disjoint a c, b c
// why: tiles in shared memory
// launch: 2,2 16,16 buf:4096 buf:4096 zero:4096 u32:32
__global__ void gemm_tiled(const float *a, const float *b, float *c, int n) {
    __shared__ float s[16][16], t[16][16];
    int row = by() * 16 + ty(), column = bx() * 16 + tx();
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        s[ty()][tx()] = a[row * n + k + tx()];
        t[ty()][tx()] = b[(k + ty()) * n + column];
        __syncthreads();
        for (int j = 0; j < 16; j++) sum += s[ty()][j] * t[j][tx()];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
//---- gemm_beta
// label: never
// why: adds to the output
// launch: 16 16 buf:1024 buf:1024 buf:1024 u32:16
__global__ void gemm_beta(const float *a, const float *b, float *c, int n) {
    float sum = 0;
    for (int k = 0; k < n; k++) sum += a[bx() * n + k] * b[k * n + tx()];
    c[bx() * n + tx()] = sum + 0.5f * c[bx() * n + tx()];
}
//---- gemm_k_outside
// label: never
// why: partial sums live in the output and are updated there
// launch: 16 16 buf:1024 buf:1024 buf:1024 u32:16
__global__ void gemm_k_outside(const volatile float *a, const float *b, float *c, int n) {
    for (int k = 0; k < n; k++) c[bx() * n + tx()] += b[bx() * n + k] * b[k * n + tx()];
}
//---- conv_constant_weights
// label: disjoint a out
// why: weights in constant memory
// launch: 4 32 buf:528 zero:512
__constant__ float weights[5] = {1, 2, 3, 2, 1};
__global__ void conv_constant_weights(const float *a, float *out) {
    int i = bx() * bdx() + tx();
    float sum = 0;
    for (int k = 0; k < 5; k++) sum += weights[k] * a[i + k];
    out[i] = sum;
}
//---- softmax_recompute
// label: disjoint a out
// why: exponentials are computed twice, the output is only written
// launch: 2 32 buf:512 zero:512
__global__ void softmax_recompute(const float *a, float *out) {
    float m = -1e30f, sum = 0;
    for (int i = tx(); i < 64; i += 32) m = max_f(m, a[bx() * 64 + i]);
    for (int d = 16; d > 0; d >>= 1) m = max_f(m, shfl_f(m, d));
    for (int i = tx(); i < 64; i += 32) sum += exp_f(a[bx() * 64 + i] - m);
    for (int d = 16; d > 0; d >>= 1) sum += shfl_f(sum, d);
    for (int i = tx(); i < 64; i += 32) out[bx() * 64 + i] = exp_f(a[bx() * 64 + i] - m) / sum;
}
//---- softmax_two_pass
// label: disjoint a out
// why: the output holds the exponentials until they are scaled; each thread reads only its own writes of this run
// launch: 2 32 buf:512 zero:512
__global__ void softmax_two_pass(const float *a, float *out) {
    float sum = 0;
    for (int i = tx(); i < 64; i += 32) { float e = exp_f(a[bx() * 64 + i] * 1e30f); out[bx() * 64 + i] = e; sum += e; }
    for (int d = 16; d > 0; d >>= 1) sum += shfl_f(sum, d);
    for (int i = tx(); i < 64; i += 32) out[bx() * 64 + i] /= sum;
}
//---- layer_norm
// label: disjoint a out
// why: two reads of a row, one store
// launch: 2 32 buf:256 zero:256
__global__ void layer_norm(const float *a, float *out) {
    float v = a[bx() * 32 + tx()], sum = v, squares = v * v;
    for (int d = 16; d > 0; d >>= 1) { sum += shfl_f(sum, d); squares += shfl_f(squares, d); }
    float mean = sum / 32, variance = squares / 32 - mean * mean;
    out[bx() * 32 + tx()] = (v - mean) * rsqrt_f(variance + 1e-5f);
}
//---- copy_by_table
// label: never
// why: both pointers come from memory; no condition on parameters tells where they point
// launch: 2 32 table:1,2 buf:256 zero:256
__global__ void copy_by_table(float **table, float *a, float *b) {
    int i = bx() * bdx() + tx();
    table[1][i] = table[0][i];
}
//---- load_by_table
// label: never
// why: the buffer that is read may be the one that is written
// launch: 2 32 table:2,2 zero:256 buf:256
__global__ void load_by_table(float **table, float *out, float *a) {
    int i = bx() * bdx() + tx();
    out[i] = table[i & 1][i];
}
//---- sum_list
// label: never
// why: follows pointers in memory, which may point to the buffer that is written
// launch: 1 1 table:0,0 zero:4 u32:5
struct List { List *next; int value; };
__global__ void sum_list(List *list, int *out, int n) {
    int sum = 0;
    for (int k = 0; k < n; k++) { sum += k; list = list->next; }
    *out = sum + (list != 0);
}
//---- sum_index_list
// label: disjoint next out
// why: the same by indices into one parameter
// launch: 4 8 idx:128:32 zero:128
__global__ void sum_index_list(const int *next, int *out) {
    int i = bx() * bdx() + tx(), sum = 0;
    for (int at = i, k = 0; k < 5; k++) { sum += at; at = next[at]; }
    out[i] = sum;
}
//---- select_input
// label: disjoint a out, b out
// why: a pointer is one of two parameters
// launch: 4 32 buf:512 buf:512 zero:512 u32:1
__global__ void select_input(const float *a, const float *b, float *out, int which) {
    int i = bx() * bdx() + tx();
    out[i] = (which ? a : b)[i];
}
//---- select_output_may_be_input
// label: never
// why: the output is one of two parameters, and one of them is read
// launch: 2 32 buf:256 buf:256 u32:1
__global__ void select_output_may_be_input(float *a, float *b, int which) {
    int i = bx() * bdx() + tx();
    (which ? a : b)[i] = a[i] + 1;
}
//---- shift_down
// label: never
// why: reads the next element, which another thread of the block overwrites
// launch: 1 32 buf:136
__global__ void shift_down(int *x) {
    int v = x[tx() + 1];
    __syncthreads();
    x[tx()] = v;
}
//---- second_half
// label: always
// why: each block reads the first half of its window and writes the second
// launch: 4 32 buf:1024
__global__ __attribute__((launch_bounds(32))) void second_half(int *x) {
    int *window = x + bx() * 64;
    window[32 + tx()] = window[tx()] * 3;
}
//---- second_half_unbounded
// label: never
// why: the same without a bound on the block size: more than 32 threads would read what they write
// launch: 4 64 buf:2048
__global__ void second_half_unbounded(int *x) {
    int *window = x + bx() * 96;
    window[32 + tx()] = window[tx()] * 3;
}
//---- evens_to_odds
// label: always
// why: even elements are read, odd ones are written
// launch: 4 32 buf:1024
__global__ void evens_to_odds(int *x) {
    int i = bx() * bdx() + tx();
    x[2 * i + 1] = x[2 * i] + 1;
}
//---- evens_to_odds_grid_stride
// label: always
// why: the same in a loop with a stride that is not known
// launch: 2 32 buf:1024 u32:128
__global__ void evens_to_odds_grid_stride(int *x, int n) {
    for (int i = bx() * bdx() + tx(); i < n; i += bdx() * gdx()) x[2 * i + 1] = x[2 * i] + 1;
}
//---- struct_fields
// label: always
// why: one field of each structure is read, another is written
// launch: 4 32 buf:2048
struct Body { float x, y, z, w; };
__global__ void struct_fields(Body *bodies) {
    int i = bx() * bdx() + tx();
    bodies[i].w = bodies[i].x * bodies[i].y + bodies[i].z;
}
//---- struct_fields_overlapping
// label: never
// why: a field that is written is read as well
// launch: 4 32 buf:2048
struct Body { float x, y, z, w; };
__global__ void struct_fields_overlapping(Body *bodies) {
    int i = bx() * bdx() + tx();
    bodies[i].z = bodies[i].x * bodies[i].y + bodies[i].z;
}
//---- bytes_within_words
// label: never
// why: a byte of the word that was read is overwritten
// launch: 4 32 buf:512
__global__ void bytes_within_words(int *x) {
    int i = bx() * bdx() + tx();
    ((char *)x)[4 * i + 2] = x[i] % 7;
}
//---- bytes_of_other_words
// label: always
// why: bytes of the odd words are written, the even words are read
// launch: 4 32 buf:1024
__global__ void bytes_of_other_words(int *x) {
    int i = bx() * bdx() + tx();
    ((char *)x)[8 * i + 5] = x[2 * i] + 1;
}
//---- vector_copy
// label: disjoint a out
// why: 16 bytes at a time
// launch: 2 32 buf:1024 zero:1024
__global__ void vector_copy(const f4 *a, f4 *out) {
    int i = bx() * bdx() + tx();
    out[i] = a[i];
}
//---- vector_in_place
// label: never
// why: 16 bytes at a time, in place
// launch: 2 32 buf:1024
__global__ void vector_in_place(f4 *x) {
    int i = bx() * bdx() + tx();
    f4 v = x[i];
    x[i] = v + v;
}
//---- vector_tail
// label: never
// why: the 16 bytes that are read reach into the word that is written
// launch: 2 32 buf:1024
__global__ void vector_tail(f4 *x) {
    int i = bx() * bdx() + tx();
    f4 v = x[i];
    ((float *)x)[4 * i + 3] = v.x + v.w;
}
//---- grid_stride
// label: disjoint a out
// why: a loop over the grid
// launch: 2 32 buf:1024 zero:1024 u32:256
__global__ void grid_stride(const float *a, float *out, int n) {
    for (int i = bx() * bdx() + tx(); i < n; i += bdx() * gdx()) out[i] = a[i] * a[i];
}
//---- last_block_reduction
// label: never
// why: the last block to arrive, found by an atomic counter, sums the results of the others
// launch: 4 32 buf:512 zero:16 zero:4
__global__ void last_block_reduction(const float *a, float *partial, int *count) {
    if (tx() == 0) {
        partial[bx()] = a[bx()];
        __nvvm_membar_gl();
        if (__nvvm_atom_add_gen_i(count, 1) == gdx() - 1) {
            float sum = 0;
            for (int i = 0; i < gdx(); i++) sum += partial[i];
            partial[0] = sum;
        }
    }
}
//---- spin_on_flag
// label: never
// why: blocks wait for each other in memory
// launch: 2 1 zero:16
__global__ void spin_on_flag(volatile int *flag) {
    if (bx() == 1) { flag[0] = 1; flag[1] = 2; } else flag[2] = flag[0];
}
//---- first_winners
// label: never
// why: an atomic in shared memory decides which eight threads store
// launch: 1 32 buf:128 zero:128
__global__ void first_winners(const int *a, int *out) {
    __shared__ int count;
    if (tx() == 0) count = 0;
    __syncthreads();
    if (shared_add(&count, 1) < 8) out[tx()] = a[tx()] + 1;
}
//---- arbitrary_winner
// label: never
// why: one of several stores to a shared word wins; only the winner stores
// launch: 1 32 buf:128 zero:128
__global__ void arbitrary_winner(const int *a, int *out) {
    __shared__ int winner;
    if (a[tx()] > 2) winner = tx();
    __syncthreads();
    if (winner == tx()) out[tx()] = 1;
}
//---- compact_by_atomic
// label: disjoint a out
// why: an atomic in shared memory assigns positions: another run fills the same positions in another order
// launch: 1 32 buf:128 zero:128
__global__ void compact_by_atomic(const int *a, int *out) {
    __shared__ int count;
    if (tx() == 0) count = 0;
    __syncthreads();
    int v = a[tx()];
    if (v & 1) out[shared_add(&count, 1)] = v;
}
//---- compact_by_scan
// label: disjoint a out
// why: positions come from a scan of flags, which is the same in every run
// launch: 2 32 buf:256 zero:256
__global__ void compact_by_scan(const int *a, int *out) {
    __shared__ int flag[32];
    int v = a[bx() * 32 + tx()];
    flag[tx()] = v & 1;
    __syncthreads();
    int at = 0;
    for (int i = 0; i < tx(); i++) at += flag[i];
    if (v & 1) out[bx() * 32 + at] = v;
}
//---- sort_block
// label: disjoint a out
// why: sorted in shared memory
// launch: 2 32 buf:256 zero:256
__global__ void sort_block(const int *a, int *out) {
    __shared__ int s[32];
    int t = tx();
    s[t] = a[bx() * 32 + t];
    for (int k = 2; k <= 32; k *= 2)
        for (int j = k / 2; j > 0; j /= 2) {
            __syncthreads();
            int o = t ^ j;
            if (o > t && ((t & k) == 0) == (s[t] > s[o])) { int v = s[t]; s[t] = s[o]; s[o] = v; }
        }
    __syncthreads();
    out[bx() * 32 + t] = s[t];
}
//---- sort_block_in_place
// label: never
// why: sorted in shared memory and stored to the input
// launch: 2 32 buf:256
__global__ void sort_block_in_place(int *x) {
    __shared__ int s[32];
    int t = tx(), rank = 0;
    s[t] = x[bx() * 32 + t];
    __syncthreads();
    for (int i = 0; i < 32; i++) rank += s[i] < s[t] || s[i] == s[t] && i < t;
    x[bx() * 32 + rank] = s[t];
}
//---- measure_time
// label: never
// why: a clock is stored
// launch: 1 32 buf:128 zero:128
__global__ void measure_time(const float *a, int *out) {
    int start = __nvvm_read_ptx_sreg_clock();
    out[tx()] = start + (a[tx()] > 1);
}
//---- early_exit
// label: disjoint a out
// why: threads leave at several places
// launch: 4 32 buf:512 zero:512 u32:100
__global__ void early_exit(const float *a, float *out, int n) {
    int i = bx() * bdx() + tx();
    if (i >= n) return;
    float v = a[i];
    if (v > 9) return;
    out[i] = v;
}
//---- predicated_in_place
// label: never
// why: only some elements are updated, but these in place
// launch: 4 32 buf:512
__global__ void predicated_in_place(int *x) {
    int i = bx() * bdx() + tx();
    if (x[i] > 5) x[i] -= 5;
}
//---- predicated_store
// label: disjoint a out
// why: a loaded value decides about the store; it is the same in both runs
// launch: 4 32 buf:512 zero:512
__global__ void predicated_store(const int *a, int *out) {
    int i = bx() * bdx() + tx();
    if (a[i] > 5) out[i] = a[i] - 5;
}
//---- call_copy
// label: disjoint a out
// why: a device function does the access
// launch: 4 32 buf:512 zero:512
__device__ __attribute__((noinline)) void move(const float *a, float *out, int i) { out[i] = a[i]; }
__global__ void call_copy(const float *a, float *out) { move(a, out, bx() * bdx() + tx()); }
//---- call_in_place
// label: never
// why: a device function updates in place
// launch: 4 32 buf:512
__device__ __attribute__((noinline)) void twice(float *x) { *x = *x * 2; }
__global__ void call_in_place(float *x) { twice(x + bx() * bdx() + tx()); }
//---- call_swapped
// label: never
// why: called twice, the second time with the input as the output
// launch: 4 32 buf:512 buf:512
__device__ __attribute__((noinline)) void add_to(const float *a, float *out, int i) { out[i] = a[i] + 1; }
__global__ void call_swapped(float *a, float *b) {
    int i = bx() * bdx() + tx();
    add_to(a, b, i);
    add_to(b, a, i);
}
//---- call_returns_pointer
// label: disjoint a out, b out
// why: a device function chooses the pointer
// launch: 4 32 buf:512 buf:512 zero:512
__device__ __attribute__((noinline)) const float *choose(const float *a, const float *b, int i) { return i & 1 ? a : b; }
__global__ void call_returns_pointer(const float *a, const float *b, float *out) {
    int i = bx() * bdx() + tx();
    out[i] = choose(a, b, i)[i];
}
//---- struct_parameter
// label: disjoint arguments arguments+8
// why: the pointers are in a structure that is passed by value
// launch: 4 32 struct[buf:512,zero:512,u32:128]
struct Arguments { const float *a; float *out; int n; };
__global__ void struct_parameter(Arguments arguments) {
    int i = bx() * bdx() + tx();
    if (i < arguments.n) arguments.out[i] = arguments.a[i];
}
//---- begin_end
// label: disjoint begin out
// why: a length is the difference of two pointers into one buffer
// launch: 1 32 buf:512 zero:128 u32:128
__global__ void begin_end(const float *begin, float *out, int n) {
    const float *end = begin + n;
    float sum = 0;
    for (const float *p = begin + tx(); p < end; p += 32) sum += *p;
    out[tx()] = sum / (end - begin);
}
//---- local_array
// label: disjoint a out
// why: an array of the thread's own
// launch: 2 32 buf:1024 zero:256 u32:3
__global__ void local_array(const int *a, int *out, int k) {
    int i = bx() * bdx() + tx(), v[8] = {};
    for (int j = 0; j < 8; j++) v[(a[4 * i + (j & 3)] + j) & 7] += j;
    out[i] = v[k & 7];
}
//---- local_pointers
// label: disjoint a out, b out, c out
// why: pointers in an array of the thread's own
// launch: 2 32 buf:256 buf:256 buf:256 zero:256
__global__ void local_pointers(const float *a, const float *b, const float *c, float *out) {
    const float *p[3] = {a, b, c};
    int i = bx() * bdx() + tx();
    out[i] = p[i % 3][i];
}
//---- shared_pointer
// label: disjoint a out
// why: a pointer is passed through shared memory
// launch: 2 32 buf:256 zero:256
__global__ void shared_pointer(const float *a, float *out) {
    __shared__ const float *p;
    if (tx() == 0) p = a + bx() * 32;
    __syncthreads();
    out[bx() * 32 + tx()] = p[tx()];
}
//---- module_variables
// label: always
// why: two variables of the module; parameters are not involved
// launch: 2 32
__device__ float table_a[64] = {1, 2, 3};
__device__ float table_b[64];
__global__ void module_variables() { table_b[bx() * 32 + tx()] = table_a[bx() * 32 + tx()] + 1; }
//---- module_counter
// label: never
// why: a variable of the module is counted up
// launch: 1 1
__device__ int counter;
__global__ void module_counter() { counter++; }
//---- random_state
// label: never
// why: the generator's state is advanced
// launch: 2 32 buf:256 zero:256
__global__ void random_state(unsigned *state, unsigned *out) {
    int i = bx() * bdx() + tx();
    unsigned s = state[i] * 1664525u + 1013904223u;
    state[i] = s;
    out[i] = s >> 16;
}
//---- random_seed
// label: always
// why: random numbers from a seed and the index
// launch: 2 32 zero:256 u32:17
__global__ void random_seed(unsigned *out, unsigned seed) {
    int i = bx() * bdx() + tx();
    unsigned s = seed ^ i;
    for (int k = 0; k < 8; k++) s = s * 1664525u + 1013904223u;
    out[i] = s;
}
//---- life
// label: disjoint a out
// why: a cellular automaton from one grid to another
// launch: 8 16 buf:1024 zero:1024
__global__ void life(const int *a, int *out) {
    int x = tx(), y = bx(), n = 0;
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++) n += a[((y + dy) & 15) * 16 + ((x + dx) & 15)] & 1;
    out[y * 16 + x] = n == 3 || n == 4 && a[y * 16 + x] & 1;
}
//---- floyd_warshall
// label: never
// why: distances are improved in place
// launch: 8 8 buf:256 u32:3
__global__ void floyd_warshall(int *d, int k) {
    int through = d[bx() * 8 + k] + d[k * 8 + tx()];
    if (through < d[bx() * 8 + tx()]) d[bx() * 8 + tx()] = through;
}
//---- bfs_level
// label: never
// why: levels are read and written
// launch: 1 32 idx:128:32 zero:128 u32:0
__global__ void bfs_level(const int *edge, int *level, int current) {
    int i = tx();
    if (level[i] == current && level[edge[i]] == 0) level[edge[i]] = current + 1;
}
//---- spmv
// label: disjoint row y, column y, value y, x y
// why: a sparse product
// launch: 1 8 idx:64:8 idx:512:8 buf:512 buf:32 zero:32
__global__ void spmv(const int *row, const int *column, const float *value, const float *x, float *y) {
    float sum = 0;
    for (int j = row[tx()]; j < row[tx()] + 5; j++) sum += value[j] * x[column[j]];
    y[tx()] = sum;
}
//---- atomic_max
// label: disjoint a out
// why: a maximum can be taken twice; the proof needs arithmetic and not addresses
// launch: 2 32 buf:256 zero:4
__global__ void atomic_max(const int *a, int *out) { __nvvm_atom_max_gen_i(out, a[bx() * bdx() + tx()]); }
//---- lock
// label: never
// why: a lock is taken and released
// launch: 1 1 zero:4 buf:4
__global__ void lock(int *mutex, int *x) {
    while (__nvvm_atom_cas_gen_i(mutex, 0, 1) != 0) {}
    *x += 1;
    __nvvm_atom_xchg_gen_i(mutex, 0);
}
//---- swap
// label: never
// why: two buffers are swapped
// launch: 2 32 buf:256 buf:256
__global__ void swap(int *a, int *b) {
    int i = bx() * bdx() + tx(), v = a[i];
    a[i] = b[i];
    b[i] = v;
}
//---- reverse
// label: disjoint a out
// why: reversed into another buffer
// launch: 2 32 buf:256 zero:256
__global__ void reverse(const int *a, int *out) { out[bx() * 32 + 31 - tx()] = a[bx() * 32 + tx()]; }
//---- reverse_in_place
// label: never
// why: reversed in place, through shared memory
// launch: 2 32 buf:256
__global__ void reverse_in_place(int *x) {
    __shared__ int s[32];
    s[tx()] = x[bx() * 32 + tx()];
    __syncthreads();
    x[bx() * 32 + 31 - tx()] = s[tx()];
}
//---- global_scratch
// label: disjoint a scratch, a out
// why: each thread keeps intermediate values in its own row of a buffer and reads only its own writes of this run
// launch: 2 32 buf:256 zero:256 zero:256
__global__ void global_scratch(const int *a, volatile_free int *scratch, int *out) {
    int i = bx() * bdx() + tx();
    scratch[i] = a[i] * 3;
    keep();
    out[i] = scratch[i] + 1;
}
//---- global_scratch_of_block
// label: disjoint a scratch, a out, scratch out
// why: all threads write the scratch buffer, then all read it: stores come before the loads for the whole block
// launch: 2 32 buf:256 zero:256 zero:256
__global__ void global_scratch_of_block(const int *a, int *scratch, int *out) {
    scratch[bx() * 32 + tx()] = a[bx() * 32 + tx()] * 3;
    __syncthreads();
    out[bx() * 32 + tx()] = scratch[bx() * 32 + (tx() ^ 1)];
}
//---- global_scratch_reused
// label: never
// why: the scratch buffer is read before it is written again, and its initial contents matter
// launch: 2 32 buf:256 buf:256
__global__ void global_scratch_reused(int *scratch, int *out) {
    int v = scratch[bx() * 32 + (tx() ^ 1)];
    __syncthreads();
    scratch[bx() * 32 + tx()] = v * 3;
    __syncthreads();
    out[bx() * 32 + tx()] = scratch[bx() * 32 + (tx() ^ 1)];
}
//---- embedding
// label: disjoint token out, table out, position out
// why: rows of two tables are added
// launch: 8 16 idx:32:16 buf:1024 buf:512 zero:512
__global__ void embedding(const int *token, const float *table, const float *position, float *out) {
    out[bx() * 16 + tx()] = table[token[bx()] * 16 + tx()] + position[bx() * 16 + tx()];
}
//---- attention_row
// label: disjoint q out, k out, v out
// why: one query per block
// launch: 4 16 buf:256 buf:512 buf:512 zero:256
__global__ void attention_row(const float *q, const float *k, const float *v, float *out) {
    __shared__ float score[8];
    int t = tx();
    if (t < 8) { float s = 0; for (int i = 0; i < 16; i++) s += q[bx() * 16 + i] * k[t * 16 + i]; score[t] = exp_f(s * 0.001f); }
    __syncthreads();
    float sum = 0, o = 0;
    for (int j = 0; j < 8; j++) { sum += score[j]; o += score[j] * v[j * 16 + t]; }
    out[bx() * 16 + t] = o / sum;
}
//---- batch_norm_running
// label: never
// why: running statistics are updated in place
// launch: 4 32 buf:512 zero:512 buf:16
__global__ void batch_norm_running(const float *a, float *out, float *mean) {
    float v = a[bx() * 32 + tx()], sum = v;
    for (int d = 16; d > 0; d >>= 1) sum += shfl_f(sum, d);
    out[bx() * 32 + tx()] = v - sum / 32;
    if (tx() == 0) mean[bx()] = 0.9f * mean[bx()] + 0.1f * sum / 32;
}
//---- sgd_step
// label: never
// why: parameters are updated in place
// launch: 4 32 buf:512 buf:512 f32:0.1
__global__ void sgd_step(float *w, const float *g, float rate) {
    int i = bx() * bdx() + tx();
    w[i] -= rate * g[i];
}
//---- concat
// label: disjoint a out, b out
// why: two inputs go to two parts of one output
// launch: 4 32 buf:512 buf:512 zero:1024
__global__ void concat(const float *a, const float *b, float *out) {
    int i = bx() * bdx() + tx();
    out[i] = a[i];
    out[i + 128] = b[i];
}
//---- append_half
// label: never
// why: the second half of a buffer of unknown length is filled from the first: windows of a block may overlap
// launch: 4 32 buf:1024 u32:128
__global__ void append_half(int *x, int n) {
    int i = bx() * bdx() + tx();
    x[i + n] = x[i];
}
