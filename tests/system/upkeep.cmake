# Whole deployments that gms-up keeps. `failovers.sh BIN_DIR` without a number is the long form, twenty in a row.
add_test(NAME upkeep COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/upkeep.sh ${CMAKE_BINARY_DIR})
add_test(NAME failovers_short COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/failovers.sh ${CMAKE_BINARY_DIR} 3)
add_test(NAME containers COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/containers.sh ${CMAKE_BINARY_DIR})
add_test(NAME end_and_again COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/end_and_again.sh ${CMAKE_BINARY_DIR})
set_tests_properties(upkeep end_and_again failovers_short containers PROPERTIES LABELS drill TIMEOUT 150 RUN_SERIAL ON SKIP_RETURN_CODE 77
                     ENVIRONMENT "${GMS_TEST_ENVIRONMENT};ASAN_OPTIONS=detect_leaks=0")
# The units of slurm/ under a systemd of its own.
add_test(NAME systemd_live COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/systemd_live.sh ${CMAKE_BINARY_DIR}
                                   ${PROJECT_SOURCE_DIR}/slurm/systemd)
set_tests_properties(systemd_live PROPERTIES LABELS slurm TIMEOUT 120 RUN_SERIAL ON SKIP_RETURN_CODE 77
                     ENVIRONMENT "${GMS_TEST_ENVIRONMENT};ASAN_OPTIONS=detect_leaks=0")
