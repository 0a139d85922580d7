# Reported faults that need a test program of their own, and parts that only whole programs had shown.
add_library(hold_prctl MODULE hold_prctl.c)
gms_add_test(NAME test_exec_parent SOURCES test_exec_parent.c LIBRARIES gms_wire gms_base Threads::Threads)
add_dependencies(test_exec_parent gms-exec exec_engine hold_prctl)
set_tests_properties(test_exec_parent PROPERTIES ENVIRONMENT
  "GMS_BIN=${CMAKE_BINARY_DIR};GMS_TEST_ENGINE=$<TARGET_FILE:exec_engine>;GMS_TEST_HOLD_PRCTL=$<TARGET_FILE:hold_prctl>")
gms_add_test(NAME test_store_bytes SOURCES test_store_bytes.c LIBRARIES gms_coord PkgConfig::SQLITE TIMEOUT 120)

gms_add_test(NAME test_coord_copies SOURCES test_coord_copies.c LIBRARIES gms_coord gms_keeper_client gms_wire gms_base)
add_dependencies(test_coord_copies gms-keeper)
set_tests_properties(test_coord_copies PROPERTIES ENVIRONMENT "${GMS_TEST_ENVIRONMENT}")
gms_add_test(NAME test_coord_members SOURCES test_coord_members.c LIBRARIES gms_coord gms_base PkgConfig::LIBEVENT)
gms_add_test(NAME test_exec_saved SOURCES test_exec_saved.c
             LIBRARIES gms_exec_parts gms_keeper_client gms_wire gms_base)
add_dependencies(test_exec_saved gms-keeper)
set_tests_properties(test_exec_saved PROPERTIES ENVIRONMENT "${GMS_TEST_ENVIRONMENT}")
gms_add_test(NAME test_up_parts SOURCES test_up_parts.c LIBRARIES gms_up_parts)
gms_add_test(NAME test_up_engines SOURCES test_up_engines.c LIBRARIES gms_up_parts)
gms_add_test(NAME test_coord_document SOURCES test_coord_document.c LIBRARIES gms_coord PkgConfig::JANSSON)

# Batch scripts and units.
add_test(NAME restart_loop COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/test_restart_loop.sh ${CMAKE_SOURCE_DIR}/slurm/restart-loop.sh)
add_test(NAME systemd_units COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/test_systemd_units.sh ${CMAKE_SOURCE_DIR}/slurm/systemd ${CMAKE_BINARY_DIR})
set_tests_properties(restart_loop systemd_units PROPERTIES LABELS slurm TIMEOUT 60 SKIP_RETURN_CODE 77)
