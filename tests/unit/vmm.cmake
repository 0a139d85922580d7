# Memory: one suite for both kinds. The CUDA half runs on a driver made of host memory, and, where tests/gpu finds one,
# on a real GPU.
add_library(fake_cuda SHARED fake_cuda.c)
target_link_libraries(fake_cuda PRIVATE gms_options gms_vmm)
set_target_properties(fake_cuda PROPERTIES OUTPUT_NAME cuda SOVERSION 1
                                           LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/fake)
set(GMS_FAKE_CUDA_DIR ${CMAKE_BINARY_DIR}/tests/fake)

gms_add_test(NAME test_vmm SOURCES test_vmm.c vmm_suite.c LIBRARIES gms_vmm)
gms_add_test(NAME test_vmm_cuda SOURCES test_vmm_cuda.c vmm_suite.c LIBRARIES gms_vmm)
add_dependencies(test_vmm_cuda fake_cuda)
set_tests_properties(test_vmm_cuda PROPERTIES ENVIRONMENT "LD_LIBRARY_PATH=${GMS_FAKE_CUDA_DIR}")
gms_add_test(NAME test_devices SOURCES test_devices.c LIBRARIES gms_vmm)
