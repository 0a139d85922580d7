# SPDX-License-Identifier: Apache-2.0
# NCCL on real devices, under real coordinators (tests/mpi's harness).
gms_add_gpu_test(gpu_nccl)
target_link_libraries(gpu_nccl PRIVATE gms_mpi_harness gms_nccl)
add_dependencies(gpu_nccl gms-coord gms-keeper)
set_tests_properties(gpu_nccl PROPERTIES ENVIRONMENT "${GMS_TEST_ENVIRONMENT};NCCL_GRAPH_REGISTER=0")
