# Tests of coord/core, with the cluster that plays its drivers.
gms_add_test(NAME test_core_slot SOURCES test_core_slot.c LIBRARIES gms_core)
gms_add_test(NAME test_core_ballot SOURCES test_core_ballot.c LIBRARIES gms_core)
foreach(test operation pool budget takeover transfer snapshot recovery restore reclaim exchange)
  gms_add_test(NAME test_core_${test} SOURCES test_core_${test}.c LIBRARIES sim_cluster)
endforeach()
add_test(NAME core_is_pure COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/core_is_pure.sh ${CMAKE_NM} $<TARGET_FILE:gms_core>)
set_tests_properties(core_is_pure PROPERTIES LABELS unit TIMEOUT 10 SKIP_RETURN_CODE 77)
