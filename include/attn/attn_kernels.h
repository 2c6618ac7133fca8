/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled GPU kernels as files: what the library keeps, and how to ship it.
 *
 * Plans of a GPU compile their kernels once and keep them in the context's cache folder (attn_config.cache). To make
 * kernels for GPUs that are not there, create plans in contexts of device "gpu:t4", "gpu:a100" ... with ATTN_COMPILE.
 * attn_kernels_pack then puts what a folder holds into one file, from which a context (attn_config.kernels) takes its
 * kernels where no compiler is.
 *
 * Code depends on types, head sizes, mask and features, tile and architecture; not on batch, heads, lengths, strides,
 * scale or window sizes. Packs serve the version of the library that made them. */
#ifndef ATTN_ATTN_KERNELS_H
#define ATTN_ATTN_KERNELS_H

#include "attn/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Strings live during the call only. */
typedef struct attn_kernel_info {
    size_t struct_size;
    const char *name;   /* what a profiler shows */
    const char *target; /* "sm_90a"; "compute_80": PTX, which the driver translates */
    const char *nvrtc;  /* version of the compiler */
    const char *file;
    uint64_t code_bytes;
    /* As the assembler tells; -1 for PTX. Spills or a stack are slow memory where registers were meant. */
    int registers, stack_bytes, spill_bytes;
    int current; /* 1 if this version of the library would take it; 0: another made it */
} attn_kernel_info;
typedef void (*attn_kernel_fn)(void *user, const attn_kernel_info *info);

/* Calls each(user, info) for every sound kernel of `path`: a cache folder or a pack; NULL: the context's folder. A
 * folder that does not exist has none; damaged files of a folder are passed over, a damaged pack is ERR_INVALID after
 * its sound part. Ordered by file name. */
ATTN_API attn_status attn_kernels_list(const attn_context *context, const char *path, attn_kernel_fn each, void *user,
                                       attn_error *error);

/* Writes all current kernels of a folder (NULL: the context's) into one file, replacing it at once; no file is written
 * if there are none (ERR_INVALID). *packed (may be NULL) is their number. */
ATTN_API attn_status attn_kernels_pack(const attn_context *context, const char *folder, const char *file,
                                       int64_t *packed, attn_error *error);

/* Removes from a folder (NULL: the context's) the kernels that are not current, damaged files and what interrupted
 * writers left; with `all` every kernel. Other files stay. *removed may be NULL. */
ATTN_API attn_status attn_kernels_clean(const attn_context *context, const char *folder, int all, int64_t *removed,
                                        attn_error *error);

#ifdef __cplusplus
}
#endif

#endif
