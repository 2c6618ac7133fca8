# make install: header, both libraries, command, man page, pkg-config file and CMake package.
install(DIRECTORY include/attn DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)
install(TARGETS attn EXPORT attn-shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS attn_static EXPORT attn-static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(EXISTS ${PROJECT_SOURCE_DIR}/man/attn.1)
    install(FILES man/attn.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()

set(attn_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)
install(EXPORT attn-shared NAMESPACE attn:: FILE attnTargets.cmake DESTINATION ${attn_package_dir})
install(EXPORT attn-static NAMESPACE attn:: FILE attnStaticTargets.cmake DESTINATION ${attn_package_dir})
configure_package_config_file(cmake/attnConfig.cmake.in ${PROJECT_BINARY_DIR}/attnConfig.cmake
                              INSTALL_DESTINATION ${attn_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attnConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attnConfig.cmake ${PROJECT_BINARY_DIR}/attnConfigVersion.cmake
        DESTINATION ${attn_package_dir})

set(attn_private_libs -lm -pthread)
foreach(library ${CMAKE_DL_LIBS})
    list(APPEND attn_private_libs -l${library})
endforeach()
if(OpenMP_C_FOUND)
    list(APPEND attn_private_libs ${OpenMP_C_FLAGS})
endif()
list(JOIN attn_private_libs " " attn_private_libs)
# The prefix is known only at install time (cmake --install --prefix), so the file is filled in twice.
set(attn_at "@")
configure_file(cmake/attn.pc.in ${PROJECT_BINARY_DIR}/attn.pc.in @ONLY)
install(CODE "set(ATTN_PREFIX \"\${CMAKE_INSTALL_PREFIX}\")
configure_file(\"${PROJECT_BINARY_DIR}/attn.pc.in\" \"${PROJECT_BINARY_DIR}/attn.pc\" @ONLY)")
install(FILES ${PROJECT_BINARY_DIR}/attn.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
