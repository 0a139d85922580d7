# SPDX-License-Identifier: Apache-2.0
# What rank 0 gives to all, and NCCL on top of it, on a NCCL and a driver made of host memory (tests/unit/nccl.cmake).
gms_add_mpi_test(test_coord_exchange)
target_link_libraries(test_coord_exchange PRIVATE PkgConfig::XXHASH)
gms_add_mpi_test(test_coord_nccl)
target_sources(test_coord_nccl PRIVATE ${CMAKE_SOURCE_DIR}/tests/unit/fake_nccl_find.c)
target_link_libraries(test_coord_nccl PRIVATE ${CMAKE_DL_LIBS})
add_dependencies(test_coord_nccl fake_cuda fake_nccl)
set_tests_properties(test_coord_nccl PROPERTIES ENVIRONMENT
  "${GMS_MPI_ENVIRONMENT};LD_LIBRARY_PATH=${CMAKE_BINARY_DIR}/tests/fake;FAKE_CUDA_BYTES=17179869184;NCCL_GRAPH_REGISTER=0")
