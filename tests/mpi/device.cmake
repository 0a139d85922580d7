# Device memory, on a driver made of host memory (tests/unit/vmm.cmake).
gms_add_mpi_test(test_coord_device)
add_dependencies(test_coord_device fake_cuda)
set_tests_properties(test_coord_device PROPERTIES ENVIRONMENT
  "${GMS_MPI_ENVIRONMENT};LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/tests/fake;FAKE_CUDA_BYTES=17179869184;NCCL_GRAPH_REGISTER=0")
# Going on after the end of coordinators, keeper, engines: host memory's own test, once more.
add_test(NAME test_coord_recovery_on_device COMMAND test_coord_recovery)
set_tests_properties(test_coord_recovery_on_device PROPERTIES LABELS mpi TIMEOUT 240 RUN_SERIAL ON SKIP_RETURN_CODE 77
  ENVIRONMENT "${GMS_MPI_ENVIRONMENT};LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/tests/fake;FAKE_CUDA_BYTES=17179869184;NCCL_GRAPH_REGISTER=0;GMS_TEST_MEMORY=cuda")
