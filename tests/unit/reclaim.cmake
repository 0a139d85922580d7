# Quarantine and its end: the file of suspects, providers of quiescence with a libnvidia-ml that the test scripts.
gms_add_test(NAME test_quarantine SOURCES test_quarantine.c LIBRARIES gms_directory)
add_library(fake_nvml MODULE fake_nvml.c)
target_link_libraries(fake_nvml PRIVATE gms_options)
gms_add_test(NAME test_quiescence SOURCES test_quiescence.c LIBRARIES gms_coord ${CMAKE_DL_LIBS})
add_dependencies(test_quiescence fake_nvml)
set_tests_properties(test_quiescence PROPERTIES ENVIRONMENT "GMS_FAKE_NVML=$<TARGET_FILE:fake_nvml>")
