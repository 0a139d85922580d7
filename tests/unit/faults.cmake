# Reported faults that need a test program of their own, and parts that only whole programs had shown.
add_library(hold_prctl MODULE hold_prctl.c)
gms_add_test(NAME test_exec_parent SOURCES test_exec_parent.c LIBRARIES gms_wire gms_base Threads::Threads)
add_dependencies(test_exec_parent gms-exec exec_engine hold_prctl)
set_tests_properties(test_exec_parent PROPERTIES ENVIRONMENT
  "GMS_BIN=${CMAKE_BINARY_DIR};GMS_TEST_ENGINE=$<TARGET_FILE:exec_engine>;GMS_TEST_HOLD_PRCTL=$<TARGET_FILE:hold_prctl>")
