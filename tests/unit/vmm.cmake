# Memory: one suite for both kinds. The CUDA half runs on a driver made of host memory, and, where tests/gpu finds one,
# on a real GPU.
add_library(fake_cuda SHARED fake_cuda.c fake_cuda_memory.c)
target_link_libraries(fake_cuda PRIVATE gms_options gms_vmm)
set_target_properties(fake_cuda PROPERTIES OUTPUT_NAME cuda SOVERSION 1
                                           LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/fake)
set(GMS_FAKE_CUDA_DIR ${CMAKE_BINARY_DIR}/tests/fake)

gms_add_test(NAME test_vmm SOURCES test_vmm.c vmm_suite.c LIBRARIES gms_vmm)
gms_add_test(NAME test_vmm_cuda SOURCES test_vmm_cuda.c vmm_suite.c fake_cuda_find.c LIBRARIES gms_vmm)
add_dependencies(test_vmm_cuda fake_cuda)
set_tests_properties(test_vmm_cuda PROPERTIES ENVIRONMENT "LD_LIBRARY_PATH=${GMS_FAKE_CUDA_DIR}")
gms_add_test(NAME test_devices SOURCES test_devices.c LIBRARIES gms_vmm)

# All of libgms again, over device memory.
foreach(test test_libgms test_libgms_slots test_libgms_control)
  add_test(NAME ${test}_on_device COMMAND ${test})
  set_tests_properties(${test}_on_device PROPERTIES LABELS unit TIMEOUT 60 SKIP_RETURN_CODE 77
    ENVIRONMENT "LD_LIBRARY_PATH=${GMS_FAKE_CUDA_DIR};GMS_TEST_MEMORY=cuda")
endforeach()

gms_add_test(NAME test_libgms_tags SOURCES test_libgms_tags.c fake_cuda_find.c LIBRARIES gms fake_coordinator)
gms_add_test(NAME test_device_of_rank SOURCES test_device_of_rank.c LIBRARIES gms_coord)
foreach(test test_libgms_tags test_device_of_rank)
  add_dependencies(${test} fake_cuda)
  set_tests_properties(${test} PROPERTIES ENVIRONMENT "LD_LIBRARY_PATH=${GMS_FAKE_CUDA_DIR}")
endforeach()
