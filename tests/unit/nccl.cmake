# SPDX-License-Identifier: Apache-2.0
# NCCL, on a library of the same name that is made of host memory (fake_nccl.h).
function(gms_add_fake_nccl target version directory)
  add_library(${target} SHARED fake_nccl.c fake_cuda_find.c)
  target_link_libraries(${target} PRIVATE gms_options ${CMAKE_DL_LIBS} Threads::Threads)
  target_compile_definitions(${target} PRIVATE FAKE_NCCL_VERSION=${version})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME nccl SOVERSION 2
                                             LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/${directory})
endfunction()
gms_add_fake_nccl(fake_nccl 22803 fake)
gms_add_fake_nccl(fake_nccl_new 23007 fake_nccl_new)
gms_add_fake_nccl(fake_nccl_old 21212 fake_nccl_old)

gms_add_test(NAME test_nccl SOURCES test_nccl.c fake_cuda_find.c fake_nccl_find.c LIBRARIES gms_nccl)
add_dependencies(test_nccl fake_cuda fake_nccl)
set_tests_properties(test_nccl PROPERTIES ENVIRONMENT "LD_LIBRARY_PATH=${GMS_FAKE_CUDA_DIR}")

# One library for a process, so each of the others is a run of its own.
gms_add_test(NAME test_nccl_library SOURCES test_nccl_library.c fake_cuda_find.c fake_nccl_find.c LIBRARIES gms_nccl
             ARGUMENTS missing)
add_dependencies(test_nccl_library fake_cuda fake_nccl fake_nccl_new fake_nccl_old)
foreach(kind old new environment)
  add_test(NAME test_nccl_library_${kind} COMMAND test_nccl_library ${kind})
  set_tests_properties(test_nccl_library_${kind} PROPERTIES LABELS unit TIMEOUT 60)
endforeach()
set_tests_properties(test_nccl_library test_nccl_library_old test_nccl_library_new test_nccl_library_environment PROPERTIES
  ENVIRONMENT "LD_LIBRARY_PATH=${GMS_FAKE_CUDA_DIR};FAKE_NCCL_DIR=${CMAKE_BINARY_DIR}/tests")

gms_add_test(NAME test_libgms_nccl SOURCES test_libgms_nccl.c fake_nccl_find.c LIBRARIES gms fake_coordinator ${CMAKE_DL_LIBS})
add_dependencies(test_libgms_nccl fake_cuda fake_nccl)
set_tests_properties(test_libgms_nccl PROPERTIES
  ENVIRONMENT "LD_LIBRARY_PATH=${GMS_FAKE_CUDA_DIR};GMS_TEST_MEMORY=cuda")
