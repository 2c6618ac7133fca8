/* SPDX-License-Identifier: Apache-2.0
 * Included before every file of the wheel's library on x86-64: asks for the oldest version of each symbol that glibc
 * renewed after 2.28, so that what is built on a new system loads on an old one. */
#ifndef ATTN_OLD_GLIBC_H
#define ATTN_OLD_GLIBC_H

#define _GNU_SOURCE /* as some files do themselves, too late after this one */
#include <features.h>

#if defined(__GLIBC__) && defined(__x86_64__)
#include <sys/stat.h>

#define ATTN__OLD(name) __asm__(".symver " #name "," #name "@GLIBC_2.2.5")
ATTN__OLD(exp);
ATTN__OLD(log);
ATTN__OLD(pow);
ATTN__OLD(dlopen);
ATTN__OLD(dlsym);
ATTN__OLD(dlclose);
ATTN__OLD(dlerror);
ATTN__OLD(dladdr);
ATTN__OLD(pthread_create);
ATTN__OLD(pthread_join);
ATTN__OLD(pthread_once);
__asm__(".symver expf,expf@GLIBC_2.2.5");
__asm__(".symver logf,logf@GLIBC_2.2.5");
__asm__(".symver __isoc23_strtol,strtol@GLIBC_2.2.5");
__asm__(".symver __isoc23_strtoll,strtoll@GLIBC_2.2.5");
__asm__(".symver __isoc23_strtoul,strtoul@GLIBC_2.2.5");
__asm__(".symver __isoc23_strtoull,strtoull@GLIBC_2.2.5");
__asm__(".symver __isoc23_sscanf,sscanf@GLIBC_2.2.5");

/* Functions that old glibc had as inline calls of these. */
int __xstat(int version, const char *path, struct stat *out);
int __fxstat(int version, int file, struct stat *out);
ATTN__OLD(__xstat);
ATTN__OLD(__fxstat);
#define stat(path, out)  __xstat(1, path, out)
#define fstat(file, out) __fxstat(1, file, out)
#endif

#endif
