/* SPDX-License-Identifier: Apache-2.0
 * One run: parameters, launches, the caller's context put back. Nothing here waits, allocates or compiles. */
#include "base/error.h"
#include "cuda/device.h"
#include "problem/problem.h"

#define MOST_BLOCKS 0x7fffffff /* of a grid's x axis */

static const attn__cuda_built *built_of(const attn__cuda_run *run) {
    return run->plan->built;
}

/* A stream belongs to the context it was made in; the two handles that stand for default streams belong to any. */
static attn_status check_stream(const attn__cuda *cuda, attn_stream stream, attn_error *error) {
    CUcontext owner = NULL;
    if ((uintptr_t)stream <= 2) {
        return ATTN_OK;
    }
    CUresult result = cuda->driver.StreamGetCtx(stream, &owner);
    if (result) {
        return attn__driver_fail(&cuda->driver, result, "stream", "cuStreamGetCtx", error);
    }
    return owner == cuda->handle ? ATTN_OK
                                 : attn__fail(error, ATTN_ERR_INVALID, "stream",
                                              "belongs to another CUDA context than attn_context %s", cuda->name);
}

attn_status attn__cuda_begin(attn__cuda_run *run, const attn_plan *plan, const attn_args *args, void *workspace,
                             attn_stream stream, attn_error *error) {
    const attn__cuda_built *built = plan->built;
    if (!plan->context->cuda->opened) {
        return attn__fail(error, ATTN_ERR_DEVICE, "device", "is %s: facts of a GPU, which plan but cannot run",
                          plan->context->config.device);
    }
    run->plan = plan;
    run->args = args;
    run->stream = stream;
    run->workspace = workspace;
    run->maps = NULL;
    run->error = error;
    attn__params_of_args(plan, built, args, workspace, &run->params);
    attn_status status = attn__cuda_enter(built->cuda, &run->pushed, error);
    if (status) {
        return status;
    }
    status = check_stream(built->cuda, stream, error);
    status = status ? status : attn__cuda_bring_lengths(run);
    return status ? attn__cuda_end(run, status) : ATTN_OK;
}

attn_status attn__cuda_end(attn__cuda_run *run, attn_status status) {
    attn__cuda_leave(built_of(run)->cuda, run->pushed);
    return status;
}

static int index_of(const attn__gpu_choice *choice, int role) {
    int n = 0;
    while (n < choice->n_kernels && choice->roles[n] != role) {
        n++;
    }
    return n;
}

static attn_status launch(attn__cuda_run *run, int role, unsigned blocks, void *parameters, bool early) {
    const attn__gpu_choice *choice = &run->plan->gpu_choice;
    const attn__cuda_built *built = built_of(run);
    const attn__driver *driver = &built->cuda->driver;
    int n = index_of(choice, role);
    if (n == choice->n_kernels) {
        return attn__fail(run->error, ATTN_ERR_INTERNAL, "plan", "has no kernel for role %d", role);
    }
    const attn__kernel *kernel = &choice->kernels[n];
    void *list[] = {parameters, (void *)(uintptr_t)run->maps};
    attn__launch_attribute overlap = {.id = CU_LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION, .value = 1};
    const attn__launch_config config = {.grid = {blocks, 1, 1},
                                        .block = {(unsigned)kernel->threads, 1, 1},
                                        .shared = (unsigned)kernel->shared,
                                        .stream = run->stream,
                                        .attributes = &overlap,
                                        .n_attributes = 1};
    CUresult result = early && driver->LaunchKernelEx
                          ? driver->LaunchKernelEx(&config, built->functions[n], list, NULL)
                          : driver->LaunchKernel(built->functions[n], blocks, 1, 1, config.block[0], 1, 1,
                                                 config.shared, run->stream, list, NULL);
    return result ? attn__driver_fail(driver, result, "launch", kernel->name, run->error) : ATTN_OK;
}

attn_status attn__cuda_launch_raw(attn__cuda_run *run, int role, unsigned blocks, void *parameters) {
    return launch(run, role, blocks, parameters, false);
}

attn_status attn__cuda_launch_early(attn__cuda_run *run, int role, unsigned blocks, void *parameters) {
    return launch(run, role, blocks, parameters, true);
}

attn_status attn__cuda_launch(attn__cuda_run *run, int role, int64_t tiles) {
    attn_status status = ATTN_OK;
    run->params.tiles = tiles;
    for (int64_t first = 0; first < tiles && !status; first += MOST_BLOCKS) {
        int64_t left = tiles - first;
        run->params.first_tile = first;
        status = attn__cuda_launch_raw(run, role, (unsigned)(left < MOST_BLOCKS ? left : MOST_BLOCKS), &run->params);
    }
    return status;
}

int64_t attn__cuda_blocks(const attn_problem *p, const attn_args *args, bool queries, int64_t rows_a_block) {
    attn__side side = queries ? attn__side_q(p, args) : attn__side_kv(p, args);
    int64_t runs = attn__side_count(&side), longest = side.tokens;
    if (side.rows == ATTN_SEGMENTS && !(p->flags & ATTN_DEVICE_LENGTHS)) {
        longest = 0;
        for (int64_t n = 0; n < side.n_segments; n++) {
            longest = side.segments[n].rows > longest ? side.segments[n].rows : longest;
        }
    }
    return runs * ((longest + rows_a_block - 1) / rows_a_block);
}

int64_t attn__cuda_query_blocks(const attn_problem *p, int64_t segments, int64_t tokens) {
    int64_t each = p->batch * ((p->tokens_q + tokens - 1) / tokens);
    if (p->rows_q == ATTN_DENSE) {
        return each;
    }
    bool list = p->rows_q == ATTN_SEGMENTS, apart = list && p->o.stride[0] != 0;
    int64_t whole = (apart ? p->batch : 1) * (p->total_q / tokens) + (list ? segments : p->batch);
    return list || whole < each ? whole : each;
}
