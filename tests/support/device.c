/* SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/driver.h"

#define GUARD 4096

static const char *note = "";

void device_note(const char *text) {
    note = text;
}

static void must(int status, const char *what) {
    if (status) {
        const char *name = "?";
        driver_open()->error_name(status, &name);
        fprintf(stderr, "the device failed (%s: %s) in or after: %s\n", what, name, note);
        exit(1);
    }
}

/* The device's primary context, current in each thread from its first use on. */
static const driver *ready(void) {
    static _Thread_local bool current;
    const driver *d = driver_open();
    if (!d) {
        fprintf(stderr, "no CUDA driver\n");
        exit(1);
    }
    if (!current) {
        const char *text = getenv("ATTN_TEST_DEVICE");
        int ordinal = text && strchr(text, ':') ? atoi(strchr(text, ':') + 1) : 0, device;
        void *context;
        must(d->device_get(&device, ordinal), "device");
        must(d->primary_retain(&context, device), "context");
        must(d->context_set(context), "context");
        current = true;
    }
    return d;
}

void *device_allocate(size_t size) {
    unsigned long long memory = 0;
    must(ready()->allocate(&memory, size ? size : 1), "allocation");
    return (void *)(uintptr_t)memory;
}

void device_release(void *memory) {
    if (memory) {
        must(ready()->release((uintptr_t)memory), "release");
    }
}

void device_upload(void *to, const void *from, size_t size) {
    must(size ? ready()->upload((uintptr_t)to, from, size) : 0, "copy to the device");
}

void device_download(void *to, const void *from, size_t size) {
    must(size ? ready()->download(to, (uintptr_t)from, size) : 0, "copy from the device");
}

void device_fill(void *memory, unsigned char value, size_t size) {
    must(size ? ready()->fill((uintptr_t)memory, value, size) : 0, "fill");
}

void device_wait(void) {
    must(ready()->context_wait(), "synchronisation");
}

attn_stream device_stream(void) {
    void *stream;
    must(ready()->stream_create(&stream, 0), "stream");
    return stream;
}

void device_stream_end(attn_stream stream) {
    must(stream ? ready()->stream_destroy(stream) : 0, "stream");
}

/* ---------------------------------------------------------------------------------------- twins */

static unsigned char *area_of(const fence *f) {
    return (unsigned char *)f->twin + GUARD;
}

static void guard_pattern(const fence *f, unsigned char guard[GUARD]) {
    for (size_t i = 0; i < GUARD; i++) {
        guard[i] = f->pattern[i % f->pattern_size];
    }
}

void device_push(fence *f) {
    unsigned char guard[GUARD];
    if (!f->twin) {
        f->twin = device_allocate(f->area_size + 2 * GUARD);
        if (f->sparse) {
            device_fill(f->twin, 0xFF, f->area_size + 2 * GUARD);
        }
        guard_pattern(f, guard);
        device_upload(f->twin, guard, GUARD);
        device_upload(area_of(f) + f->area_size, guard, GUARD);
    }
    if (!f->sparse) {
        device_upload(area_of(f), f->area, f->area_size);
        return;
    }
    for (size_t n = 0; n < f->n_pages; n++) {
        device_upload(area_of(f) + f->pages[n] * FENCE_PAGE, f->area + f->pages[n] * FENCE_PAGE, FENCE_PAGE);
    }
}

bool device_pull(fence *f) {
    unsigned char guard[GUARD], got[2 * GUARD];
    guard_pattern(f, guard);
    device_download(got, f->twin, GUARD);
    device_download(got + GUARD, area_of(f) + f->area_size, GUARD);
    if (!f->sparse) {
        device_download(f->area, area_of(f), f->area_size);
    }
    for (size_t n = 0; n < f->n_pages; n++) {
        device_download(f->area + f->pages[n] * FENCE_PAGE, area_of(f) + f->pages[n] * FENCE_PAGE, FENCE_PAGE);
    }
    return !memcmp(got, guard, GUARD) && !memcmp(got + GUARD, guard, GUARD);
}

void *device_address(const fence *f, const void *host) {
    return area_of(f) + ((const unsigned char *)host - f->area);
}
