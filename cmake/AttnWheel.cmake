# The library as the Python package carries it: attn/libattn.so beside the Python files.
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(attn_objects PRIVATE "SHELL:-include ${PROJECT_SOURCE_DIR}/cmake/old_glibc.h")
    # Before glibc 2.34 these were libraries of their own.
    target_link_options(attn PRIVATE "LINKER:--no-as-needed,-l:libpthread.so.0,-l:libdl.so.2,--as-needed")
endif()
target_compile_definitions(attn_objects PRIVATE ATTN_PROCESS_OPENMP=1)
target_include_directories(attn PRIVATE include)
target_link_libraries(attn PRIVATE m Threads::Threads ${CMAKE_DL_LIBS})
target_link_options(attn PRIVATE LINKER:-s)
install(TARGETS attn LIBRARY DESTINATION attn)
