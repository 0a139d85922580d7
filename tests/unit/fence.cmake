gms_add_test(NAME test_progress SOURCES test_progress.c LIBRARIES gms_coord)

# gms-cuda-lock, with a driver that has nothing but the lock, and with one that has everything else.
add_library(fake_cuda_lock SHARED fake_cuda_lock.c)
target_link_libraries(fake_cuda_lock PRIVATE gms_options)
set_target_properties(fake_cuda_lock PROPERTIES OUTPUT_NAME cuda SOVERSION 1
                                                LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/fake_lock)
add_test(NAME test_cuda_lock COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/test_cuda_lock.sh $<TARGET_FILE:gms-cuda-lock>
         ${CMAKE_BINARY_DIR}/tests/fake_lock ${CMAKE_BINARY_DIR}/tests/fake)
set_tests_properties(test_cuda_lock PROPERTIES LABELS unit TIMEOUT 60)

# What the fence's walk asks /proc.
gms_add_test(NAME test_processes SOURCES test_processes.c LIBRARIES gms_coord)
gms_add_test(NAME test_handout SOURCES test_handout.c LIBRARIES gms_coord Threads::Threads)
gms_add_test(NAME test_holders SOURCES test_holders.c LIBRARIES gms_coord PkgConfig::LIBEVENT)
gms_add_test(NAME test_rehearsal SOURCES test_rehearsal.c LIBRARIES gms_coord PkgConfig::LIBEVENT)
target_link_options(test_rehearsal PRIVATE -Wl,--wrap=gms_processes_list)
