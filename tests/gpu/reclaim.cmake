# Coordinators and the provider nvml on a real GPU: quarantine that ends, and what MPS changes.
function(gms_add_gpu_system_test name)
  cmake_parse_arguments(T "" "" "SOURCES;LIBRARIES;ARGUMENTS" ${ARGN})
  add_executable(${name} ${name}.c ${T_SOURCES})
  target_link_libraries(${name} PRIVATE gms_gpu gms_mpi_harness Threads::Threads ${CMAKE_DL_LIBS} ${T_LIBRARIES})
  add_dependencies(${name} gms-coord gms-keeper gms-exec gms-cuda-lock)
  add_test(NAME ${name} COMMAND ${name} ${T_ARGUMENTS})
  set_tests_properties(${name} PROPERTIES LABELS gpu TIMEOUT 600 SKIP_RETURN_CODE 77 RESOURCE_LOCK gpu
                       ENVIRONMENT "${GMS_TEST_ENVIRONMENT};NCCL_GRAPH_REGISTER=0")
endfunction()

gms_add_gpu_system_test(gpu_reclaim SOURCES reclaim_engine.c ARGUMENTS --kills 6)
gms_add_gpu_system_test(gpu_mps LIBRARIES gms_coord)
