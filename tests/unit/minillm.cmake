# Tests of examples/minillm.
foreach(name model sample prefix scheduler protocol sensitivity)
  gms_add_test(NAME test_minillm_${name} SOURCES test_minillm_${name}.c LIBRARIES minillm_core m TIMEOUT 240)
endforeach()
gms_add_test(NAME test_minillm_adopt SOURCES test_minillm_adopt.c ${CMAKE_SOURCE_DIR}/examples/minillm/adopt.c
             LIBRARIES minillm_core)
gms_add_test(NAME test_minillm_server SOURCES test_minillm_server.c LIBRARIES gms_base PkgConfig::JANSSON LABELS mpi
             TIMEOUT 600)
set_tests_properties(test_minillm_server PROPERTIES ENVIRONMENT "${GMS_TEST_ENVIRONMENT}" RUN_SERIAL ON)
add_dependencies(test_minillm_server minillm)
# Over libgms, which the test plays itself.
gms_add_test(NAME test_minillm_kv SOURCES test_minillm_kv.c ${CMAKE_SOURCE_DIR}/examples/minillm/kv_gms.c
             LIBRARIES minillm_core)
