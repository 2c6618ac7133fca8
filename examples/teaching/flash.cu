/* SPDX-License-Identifier: Apache-2.0
 * Fused attention in its plainest form: tiles and an online softmax, no tricks. The first station of the tour through
 * the GPU kernels; docs/cuda.md is about all that is missing here.
 *
 *   o_i = sum_j p_ij v_j,   p_ij = exp(s_ij - lse_i),   s_ij = scale <q_i, k_j>,   lse_i = log sum_j exp(s_ij)
 *
 * Written down like that, S rows of S scores come to life: for 32k tokens a gigabyte and more a head. But nobody needs
 * them at once. A softmax can be taken piece by piece: keep, for each row,
 *
 *   m   the largest score so far,   l   the sum of exp(s - m) so far,   o   the sum of exp(s - m) v so far.
 *
 * A new piece may raise the maximum from m to m'. Every old term then carries a factor exp(m - m') too much, the same
 * for all of them: l and o are multiplied by it, and the new terms are added. At the end o / l is the row and m + log l
 * its lse. Scores live in registers and are gone a moment later.
 *
 * Work is cut up so that what is loaded is used often. A block of threads takes TILE query rows, one a thread, and
 * walks over the keys TILE at a time: the block brings TILE keys and values into shared memory once, and each of its
 * TILE rows uses them. Global memory is read S / TILE times less often than row by row.
 *
 *   grid   (tiles of query rows, heads, batch)      block   TILE threads
 *   q, k, v, o   [batch, token, head, DIM] float    lse   [batch, head, token]
 *
 * Constants of the build: DIM, TILE. Limits: as many queries as keys, one key head a query head, DIM small enough that
 * two rows of it stay in registers. What it does not do, and where the real kernels do it: matrix products by tensor
 * cores (mma.cuh, hopper/wgmma.cuh), loads that run ahead of the work (copy.cuh, hopper/tma.cuh), several threads a row
 * (softmax.cuh), and a schedule that gives long rows out first (schedule.cuh). */

/* A tile of rows of one head, from global to shared memory: thread after thread takes the next number of the tile, so
 * that neighbours read neighbours. Rows past the end become zero: a product with them is harmless. */
static __device__ void load(float (*tile)[DIM], const float *from, int first, int tokens, long step) {
    for (int n = threadIdx.x; n < TILE * DIM; n += TILE) {
        int row = n / DIM, column = n % DIM;
        tile[row][column] = first + row < tokens ? from[(first + row) * step + column] : 0.0f;
    }
}

static __device__ float dot(const float *a, const float *b) {
    float sum = 0.0f;
    for (int n = 0; n < DIM; n++) {
        sum += a[n] * b[n];
    }
    return sum;
}

extern "C" __global__ void flash(const float *q, const float *k, const float *v, float *o, float *lse, int tokens,
                                 float scale, int causal) {
    __shared__ float keys[TILE][DIM], values[TILE][DIM];

    /* Where this block's head begins, and how far a token lies from the next. */
    int head = blockIdx.y, heads = gridDim.y;
    long step = (long)heads * DIM, start = (long)blockIdx.z * tokens * step + (long)head * DIM;
    q += start, k += start, v += start, o += start;

    /* This thread's row. In the last tile some have none; they still help to load. */
    int row = blockIdx.x * TILE + threadIdx.x;
    bool mine = row < tokens;

    float query[DIM], out[DIM], sum = 0.0f;
    float most = __int_as_float(0xff800000); /* -inf */
    for (int n = 0; n < DIM; n++) {
        query[n] = mine ? scale * q[row * step + n] : 0.0f;
        out[n] = 0.0f;
    }

    /* A causal row sees keys up to its own number, so a tile of rows needs no key past its last row. */
    int end = causal ? min(tokens, (int)(blockIdx.x + 1) * TILE) : tokens;

    for (int first = 0; first < end; first += TILE) {
        __syncthreads(); /* nobody may still read the tiles that are now overwritten */
        load(keys, k, first, tokens, step);
        load(values, v, first, tokens, step);
        __syncthreads(); /* and nobody may read them before they are whole */

        /* Hidden keys and keys past the end are left out by where the loop stops. */
        int count = min(TILE, tokens - first);
        if (causal) {
            count = min(count, row - first + 1);
        }
        if (count <= 0) {
            continue; /* to the next barrier with everyone else */
        }

        float score[TILE], largest = most;
        for (int j = 0; j < count; j++) {
            score[j] = dot(query, keys[j]);
            largest = fmaxf(largest, score[j]);
        }

        /* The one step that makes it exact: what was summed under the old maximum is brought to the new one. In the
         * first tile the old maximum is -inf, the factor exp(-inf) = 0, and what it meets is 0 anyway. */
        float factor = expf(most - largest);
        most = largest;
        sum *= factor;
        for (int n = 0; n < DIM; n++) {
            out[n] *= factor;
        }

        for (int j = 0; j < count; j++) {
            float p = expf(score[j] - most);
            sum += p;
            for (int n = 0; n < DIM; n++) {
                out[n] += p * values[j][n];
            }
        }
    }

    if (mine) {
        for (int n = 0; n < DIM; n++) {
            o[row * step + n] = out[n] / sum; /* every row sees a key at least: its own */
        }
        lse[((long)blockIdx.z * heads + head) * tokens + row] = most + logf(sum);
    }
}
