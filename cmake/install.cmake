# The library, its headers, a pkg-config file and a CMake package (programs are installed by their rooms). The prefix may
# be chosen at install time (--prefix).
include(CMakePackageConfigHelpers)

install(TARGETS gms EXPORT gms-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/gms/engine.h include/gms/nccl.h include/gms/status.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gms)
install(FILES examples/quickstart.cfg examples/attach.py DESTINATION ${CMAKE_INSTALL_DATADIR}/gms)
install(DIRECTORY examples/pytorch DESTINATION ${CMAKE_INSTALL_DATADIR}/gms PATTERN __pycache__ EXCLUDE)

install(DIRECTORY slurm DESTINATION ${CMAKE_INSTALL_DATADIR}/gms USE_SOURCE_PERMISSIONS)

install(EXPORT gms-targets NAMESPACE gms:: FILE gms-targets.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gms)
file(WRITE ${CMAKE_BINARY_DIR}/gms-config.cmake "include(\"\${CMAKE_CURRENT_LIST_DIR}/gms-targets.cmake\")\n")
write_basic_package_version_file(${CMAKE_BINARY_DIR}/gms-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/gms-config.cmake ${CMAKE_BINARY_DIR}/gms-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gms)

# Written at install time, when the prefix is known.
install(CODE "
  file(READ \"${CMAKE_SOURCE_DIR}/cmake/gms.pc.in\" text)
  string(REPLACE \"%CMAKE_INSTALL_PREFIX%\" \"\${CMAKE_INSTALL_PREFIX}\" text \"\${text}\")
  string(REPLACE \"%CMAKE_INSTALL_LIBDIR%\" \"${CMAKE_INSTALL_LIBDIR}\" text \"\${text}\")
  string(REPLACE \"%CMAKE_INSTALL_INCLUDEDIR%\" \"${CMAKE_INSTALL_INCLUDEDIR}\" text \"\${text}\")
  string(REPLACE \"%PROJECT_VERSION%\" \"${PROJECT_VERSION}\" text \"\${text}\")
  file(WRITE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig/gms.pc\" \"\${text}\")
")
