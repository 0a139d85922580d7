# SPDX-License-Identifier: Apache-2.0
# libgms, against a coordinator that the tests play.
add_library(fake_coordinator STATIC fake_coordinator.c)
target_link_libraries(fake_coordinator PUBLIC gms_options gms_directory gms_vmm gms_wire gms_base PkgConfig::CMOCKA
                                              PkgConfig::XXHASH Threads::Threads)
target_include_directories(fake_coordinator PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
gms_add_test(NAME test_libgms SOURCES test_libgms.c LIBRARIES gms fake_coordinator)
gms_add_test(NAME test_libgms_slots SOURCES test_libgms_slots.c LIBRARIES gms fake_coordinator)
gms_add_test(NAME test_libgms_returned SOURCES test_libgms_returned.c LIBRARIES gms fake_coordinator)
gms_add_test(NAME test_libgms_control SOURCES test_libgms_control.c LIBRARIES gms fake_coordinator)
gms_add_test(NAME test_libgms_park SOURCES test_libgms_park.c LIBRARIES gms fake_coordinator)
gms_add_test(NAME test_parking SOURCES test_parking.c LIBRARIES gms_coord gms_base)

# Only what include/gms marks GMS_API leaves the library, and all of it.
add_test(NAME test_libgms_symbols COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/test_libgms_symbols.sh $<TARGET_FILE:gms>
                                          ${CMAKE_SOURCE_DIR}/include/gms)
set_tests_properties(test_libgms_symbols PROPERTIES LABELS unit TIMEOUT 60 SKIP_RETURN_CODE 77)

# The C ABI as Python's ctypes sees it. A sanitizer's runtime would have to be loaded before Python itself.
if(NOT GMS_SANITIZE)
  add_test(NAME test_libgms_ctypes COMMAND sh -c "command -v python3 >/dev/null || { echo 'no python3' >&2; exit 77; }; \
exec python3 '${CMAKE_CURRENT_SOURCE_DIR}/test_libgms_ctypes.py' '$<TARGET_FILE:gms>'")
  set_tests_properties(test_libgms_ctypes PROPERTIES LABELS unit TIMEOUT 60 SKIP_RETURN_CODE 77)
  # The engine in Python: its own parts, without PyTorch.
  add_test(NAME test_python_engine COMMAND sh -c "command -v python3 >/dev/null || { echo 'no python3' >&2; exit 77; }; \
exec python3 '${CMAKE_CURRENT_SOURCE_DIR}/test_python_engine.py'")
  set_tests_properties(test_python_engine PROPERTIES LABELS unit TIMEOUT 60 SKIP_RETURN_CODE 77
                       ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endif()
