/* SPDX-License-Identifier: Apache-2.0
 * The device that tests run on when ATTN_TEST_DEVICE names one: its memory, and fences that have a twin there. A twin
 * holds the fence's whole area, so that gaps and slack around the data are there as they are on the host, with a guard
 * zone of the same pattern on both sides in place of the inaccessible pages.
 *
 * A device that fails stays failed: then the program ends at once and says in what. */
#ifndef TESTS_SUPPORT_DEVICE_H
#define TESTS_SUPPORT_DEVICE_H

#include "attn/attn.h"
#include "support/fence.h"

void *device_allocate(size_t size);
void device_release(void *memory);
void device_upload(void *to, const void *from, size_t size);
void device_download(void *to, const void *from, size_t size);
void device_fill(void *memory, unsigned char value, size_t size);
/* Waits for all that was launched. */
void device_wait(void);
attn_stream device_stream(void);
void device_stream_end(attn_stream stream);
/* What is under way, for the message of a device that fails; the text is not copied. */
void device_note(const char *text);

/* Copies the fence to its twin, which is made at the first call. Of a sparse fence the pages that hold elements. */
void device_push(fence *f);
/* Copies the twin back into the fence; false if a guard zone was written. */
bool device_pull(fence *f);
/* Where the twin has what lies at `host` in the fence. */
void *device_address(const fence *f, const void *host);

#endif
