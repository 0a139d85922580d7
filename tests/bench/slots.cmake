# SPDX-License-Identifier: Apache-2.0
# Run by hand; no timed test. fake_coordinator comes from tests/unit.
foreach(bench bench_slots bench_adopt_rank)
  add_executable(${bench} ${bench}.c)
  target_link_libraries(${bench} PRIVATE gms_options gms fake_coordinator)
  set_target_properties(${bench} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
endforeach()

# Not about time: the path of a token makes no system call. Sanitizers make their own, and cannot run under strace.
if(NOT GMS_SANITIZE)
  add_test(NAME bench_slots_no_system_call COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/slots_no_system_call.sh
                                                   $<TARGET_FILE:bench_slots>)
  set_tests_properties(bench_slots_no_system_call PROPERTIES LABELS unit TIMEOUT 60 SKIP_RETURN_CODE 77)
endif()
