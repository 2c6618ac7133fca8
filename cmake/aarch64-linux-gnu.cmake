# Cross build for 64-bit ARM with Debian's gcc-aarch64-linux-gnu; programs run under qemu-aarch64.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
# pkg-config here knows the host's libraries only.
set(CMAKE_DISABLE_FIND_PACKAGE_PkgConfig ON)

# gcc 12 for aarch64 stops with an internal error in a loop of sines that it vectorises (07_segments_merge.c). The
# kernels write their vectors out and do not need the pass.
set(CMAKE_C_FLAGS_INIT "-fno-tree-vectorize")
