# Tests of coord/core, with the cluster that plays its drivers.
gms_add_test(NAME test_core_slot SOURCES test_core_slot.c LIBRARIES gms_core)
gms_add_test(NAME test_core_ballot SOURCES test_core_ballot.c LIBRARIES gms_core)
foreach(test operation takeover transfer recovery)
  gms_add_test(NAME test_core_${test} SOURCES test_core_${test}.c LIBRARIES sim_cluster)
endforeach()
