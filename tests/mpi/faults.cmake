# Reported faults that need a test program of their own.
gms_add_mpi_test(test_coord_stopped)
foreach(case 256 inherited)
  add_test(NAME test_coord_descriptors_${case} COMMAND test_coord_descriptors ${case})
  set_tests_properties(test_coord_descriptors_${case} PROPERTIES
    LABELS mpi TIMEOUT 120 RUN_SERIAL ON SKIP_RETURN_CODE 77 ENVIRONMENT "${GMS_MPI_ENVIRONMENT}")
endforeach()
add_dependencies(test_coord_descriptors gms-ctl)
add_test(NAME test_coord_clock_namespaces COMMAND test_coord_clock namespaces)
set_tests_properties(test_coord_clock_namespaces PROPERTIES
  LABELS mpi TIMEOUT 120 RUN_SERIAL ON SKIP_RETURN_CODE 77 ENVIRONMENT "${GMS_MPI_ENVIRONMENT}")
# A disk that does not answer.
add_library(slow_sync MODULE slow_sync.c)
gms_add_mpi_test(test_coord_disk)
add_dependencies(test_coord_disk slow_sync)
set_tests_properties(test_coord_disk PROPERTIES ENVIRONMENT
  "${GMS_MPI_ENVIRONMENT};GMS_TEST_SLOW_SYNC=$<TARGET_FILE:slow_sync>")
