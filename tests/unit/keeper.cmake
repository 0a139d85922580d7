# gms-keeper as a program.
foreach(test test_keeper test_keeper_process)
  gms_add_test(NAME ${test} SOURCES ${test}.c LIBRARIES gms_keeper_client gms_wire gms_base TIMEOUT 120)
  add_dependencies(${test} gms-keeper)
  set_tests_properties(${test} PROPERTIES ENVIRONMENT "${GMS_TEST_ENVIRONMENT}")
endforeach()
