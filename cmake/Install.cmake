# cmake --install: libraries, headers, CMake package, pkg-config file, man page.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ringattention)

install(TARGETS ${installed} EXPORT ringattentionTargets)
install(FILES include/ringattention.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(RA_MPIS)
    install(FILES include/ringattention_mpi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()
install(EXPORT ringattentionTargets NAMESPACE ringattention:: DESTINATION ${package_dir})

configure_package_config_file(cmake/ringattentionConfig.cmake.in ringattentionConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(ringattentionConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ringattentionConfig.cmake ${CMAKE_BINARY_DIR}/ringattentionConfigVersion.cmake
        DESTINATION ${package_dir})

set(pc_private "${RA_BLAS_LIBRARIES}")
list(JOIN pc_private " " pc_private)
string(APPEND pc_private " -pthread -ldl -lm")
if(RA_OPENMP_TARGET)
    string(APPEND pc_private " ${OpenMP_C_FLAGS}")
endif()
file(RELATIVE_PATH pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/ringattention.pc.in ringattention.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/ringattention.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

file(GLOB man CONFIGURE_DEPENDS man/*.1)
if(man)
    install(FILES ${man} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
