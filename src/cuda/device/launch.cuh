/* SPDX-License-Identifier: Apache-2.0
 * Overlapped launches (sm_90): a kernel may begin while those before it in the stream still run. */
#pragma once
#include "types.cuh"

/* Launched early, a kernel waits here until all that comes before it in the stream is done and seen; before that it may
 * touch its parameters and shared memory only. The next such kernel may then bring its blocks as this one's end. */
INLINE void launch_wait() {
    asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
}
