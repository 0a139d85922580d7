# SPDX-License-Identifier: Apache-2.0
# The fence's walk over /proc. Its few sources instead of all of gms_coord, so that it needs libevent and nothing else and
# can be carried to another machine.
add_executable(bench_walk bench_walk.c plain_walk.c ${CMAKE_SOURCE_DIR}/coord/fence/handout.c
                          ${CMAKE_SOURCE_DIR}/coord/fence/holders.c ${CMAKE_SOURCE_DIR}/coord/fence/loan.c
                          ${CMAKE_SOURCE_DIR}/coord/host/maps.c
                          ${CMAKE_SOURCE_DIR}/coord/host/threads.c
                          ${CMAKE_SOURCE_DIR}/coord/host/processes.c)
target_include_directories(bench_walk PRIVATE ${CMAKE_SOURCE_DIR}/coord)
target_link_libraries(bench_walk PRIVATE gms_options gms_base PkgConfig::LIBEVENT Threads::Threads)
set_target_properties(bench_walk PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

# Not about time: that somebody is found and nobody is invented.
add_test(NAME bench_walk_short COMMAND bench_walk --processes 3 --descriptors 40 --mappings 50 --rounds 3 --fresh 1)
set_tests_properties(bench_walk_short PROPERTIES LABELS unit TIMEOUT 60)
