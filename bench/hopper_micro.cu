/* SPDX-License-Identifier: Apache-2.0
 * What single units of a Hopper processor do: one kernel, one kind of work. Each block notes the cycles that its work
 * took; results depend on all of the work. hopper_micro.c says what is counted and puts product.h, the warp-group
 * product for the width at hand, beside this text.
 *
 * Constants: WORK_name 1 for the one at hand, WIDTH (columns of a product, or bytes of a copy), ZEROS. */
typedef unsigned uint;
typedef unsigned long long uint64;
#define ROUNDS 512
#define LANES  8 /* independent chains of a thread */

struct out_t {
    uint64 cycles;
    float sink[1024];
};

static __device__ uint shared_address(const void *p) {
    return (uint)__cvta_generic_to_shared(p);
}
static __device__ uint noise(uint n) {
    n = (n ^ 61u) * 2654435761u;
    return n ^ (n >> 15);
}
/* Two bf16 values below 1 in size. */
static __device__ uint factors(uint n) {
    return ZEROS ? 0u : 0x3f003f00u | (noise(n) & 0x807f807fu);
}

/* --- Arithmetic: LANES results a thread and round --- */

static __device__ float chains(float seed) {
    float x[LANES], sum = 0.0f;
    for (int n = 0; n < LANES; n++) {
        x[n] = seed * (float)n;
    }
    for (int round = 0; round < ROUNDS; round++) {
#pragma unroll
        for (int n = 0; n < LANES; n++) {
#if defined WORK_ex2
            asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[n]));
#elif defined WORK_ex2_f16x2
            asm volatile("ex2.approx.f16x2 %0, %0;" : "+r"(*(uint *)&x[n]));
#elif defined WORK_ex2_bf16x2
            asm volatile("ex2.approx.ftz.bf16x2 %0, %0;" : "+r"(*(uint *)&x[n]));
#elif defined WORK_ffma
            asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x[n]) : "f"(seed));
#elif defined WORK_ex2_and_4_ffma
            asm volatile("{fma.rn.f32 %0, %0, %1, %1;\nfma.rn.f32 %0, %0, %1, %1;\nfma.rn.f32 %0, %0, %1, %1;\n"
                         "fma.rn.f32 %0, %0, %1, %1;\nex2.approx.ftz.f32 %0, %0;}"
                         : "+f"(x[n])
                         : "f"(seed));
#elif defined WORK_ex2_polynomial
            /* 2^x for x <= 0: whole part into the exponent, a cubic for the rest, 1e-4 of the value at most */
            float y = fmaxf(x[n], -127.0f), whole = y + 12582912.0f, rest = y - (whole - 12582912.0f);
            float p = fmaf(fmaf(fmaf(0.0555043f, rest, 0.2402265f), rest, 0.6931472f), rest, 1.0f);
            x[n] = -__int_as_float(__float_as_int(p) + (__float_as_int(whole) << 23));
#elif defined WORK_fmax
            asm volatile("max.f32 %0, %0, %1;" : "+f"(x[n]) : "f"(x[(n + 1) % LANES]));
#elif defined WORK_imax3
            x[n] = __int_as_float(__vimax3_s32(__float_as_int(x[n]), __float_as_int(x[(n + 1) % LANES]), round));
#elif defined WORK_round_bf16x2
            asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(*(uint *)&x[n]) : "f"(x[n]), "f"(x[(n + 1) % LANES]));
#elif defined WORK_hfma2
            asm volatile("fma.rn.f16x2 %0, %0, %1, %1;" : "+r"(*(uint *)&x[n]) : "r"(*(uint *)&seed));
#endif
        }
    }
    for (int n = 0; n < LANES; n++) {
        sum += x[n];
    }
    return sum;
}

/* --- Products --- */

#if defined WORK_product_shared || defined WORK_product_registers
#include "product.h"
static __device__ float products(unsigned char *shared) {
    float d[WIDTH / 2], sum = 0.0f;
    uint a[4], at = shared_address(shared);
    uint64 base = (uint64)1 << 62 | (uint64)(1024 >> 4) << 32 | (uint64)1 << 16;
    uint64 rows = base | (at >> 4), columns = base | ((at + 32768) >> 4);
    for (int n = 0; n < WIDTH / 2; n++) {
        d[n] = 0.0f;
    }
    for (int n = 0; n < 4; n++) {
        a[n] = factors(4096 + 4 * threadIdx.x + n);
    }
    rows += (threadIdx.x / 128) * (8192 >> 4);
    for (int round = 0; round < ROUNDS; round++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < 4; k++) {
            product(d, a, rows + 2 * k, columns + 2 * k);
        }
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    for (int n = 0; n < WIDTH / 2; n++) {
        sum += d[n];
    }
    return sum;
}
#endif

/* --- Shared memory, copies, barriers, sums in memory --- */

static __device__ float shared_reads(const unsigned char *shared) {
    float sum = 0.0f;
    uint at = shared_address(shared) + threadIdx.x * 16;
    for (int round = 0; round < ROUNDS; round++) {
#pragma unroll
        for (int n = 0; n < LANES; n++) {
            float a, b, c, d;
            asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(a), "=f"(b), "=f"(c), "=f"(d)
                         : "r"(at + n * 4096));
            sum += (a + b) + (c + d);
        }
    }
    return sum;
}

static __device__ void wait_phase(uint barrier, uint parity) {
    asm volatile(
        "{.reg .pred p;\nagain: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

/* Four copies of WIDTH bytes are under way at any time. `span`: bytes that all blocks share out, a power of two. */
static __device__ float copies(unsigned char *shared, const unsigned char *from, uint64 span) {
    __shared__ uint64 full[4];
    if (threadIdx.x == 0) {
        for (int n = 0; n < 4; n++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[n])));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (int n = 0; n < ROUNDS + 4; n++) {
            uint barrier = shared_address(&full[n % 4]);
            if (n >= 4) {
                wait_phase(barrier, (n / 4 - 1) & 1);
            }
            if (n < ROUNDS) {
                uint64 offset = ((uint64)n * gridDim.x + blockIdx.x) * WIDTH & (span - 1);
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(WIDTH)
                             : "memory");
                asm volatile(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                        shared_address(shared) + (n % 4) * WIDTH),
                    "l"(from + offset), "r"(WIDTH), "r"(barrier)
                    : "memory");
            }
        }
    }
    return 0.0f;
}

/* Two warp groups hand a turn to and fro, ROUNDS times each. */
static __device__ float named_turns() {
    int group = threadIdx.x / 128;
    for (int round = 0; round < ROUNDS; round++) {
        if (group == 0) {
            asm volatile("bar.arrive 1, 256;\nbar.sync 2, 256;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 256;\nbar.arrive 2, 256;" ::: "memory");
        }
    }
    return 0.0f;
}
static __device__ float phase_turns() {
    __shared__ uint64 turn[2];
    int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nmbarrier.init.shared::cta.b64 [%1], 1;" ::"r"(
                         shared_address(&turn[0])),
                     "r"(shared_address(&turn[1])));
    }
    __syncthreads();
    for (int round = 0; round < ROUNDS; round++) {
        if (group == 1) {
            wait_phase(shared_address(&turn[0]), round & 1);
        }
        if (threadIdx.x % 128 == 0) {
            asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&turn[group])) : "memory");
        }
        if (group == 0) {
            wait_phase(shared_address(&turn[1]), round & 1);
        }
    }
    return 0.0f;
}

/* Every block adds to rows of its own, 64 KB that stay in the second-level cache. */
static __device__ float sums(float *to, unsigned char *shared) {
    float *mine = to + blockIdx.x * 16384;
    for (int round = 0; round < ROUNDS; round++) {
#if defined WORK_add_one
        asm volatile("red.global.add.f32 [%0], %1;" ::"l"(mine + (round % 64) * 256 + threadIdx.x), "f"(1.0f)
                     : "memory");
#elif defined WORK_add_four
        asm volatile(
            "red.global.add.v4.f32 [%0], {%1, %1, %1, %1};" ::"l"(mine + ((round % 16) * 256 + threadIdx.x) * 4),
            "f"(1.0f)
            : "memory");
#else
        if (threadIdx.x == 0) {
            asm volatile(
                "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 4096;\n"
                "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 3;" ::"l"(mine + (round % 16) * 1024),
                "r"(shared_address(shared))
                : "memory");
        }
#endif
    }
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
    return 0.0f;
}

extern "C" __global__ void __launch_bounds__(384, 1) micro(out_t *out, unsigned char *memory, uint64 span, float seed) {
    extern __shared__ __align__(1024) unsigned char shared[];
    for (uint n = threadIdx.x; n < 65536 / 4; n += blockDim.x) {
        ((uint *)shared)[n] = factors(n);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    uint64 start = clock64();
    float result;
#if defined WORK_product_shared || defined WORK_product_registers
    result = products(shared);
#elif defined WORK_shared
    result = shared_reads(shared);
#elif defined WORK_copy
    result = copies(shared, memory, span);
#elif defined WORK_named_turn
    result = named_turns();
#elif defined WORK_phase_turn
    result = phase_turns();
#elif defined WORK_add_one || defined WORK_add_four || defined WORK_add_bulk
    result = sums((float *)memory, shared);
#else
    result = chains(seed);
#endif
    __syncthreads();
    out[blockIdx.x].sink[threadIdx.x] = result;
    if (threadIdx.x == 0) {
        out[blockIdx.x].cycles = clock64() - start;
    }
}
