# SPDX-License-Identifier: Apache-2.0
# What coordinators cost: MPI programs to be started by mpirun, and one that starts coordinators itself.
add_executable(bench_round bench_round.c)
target_link_libraries(bench_round PRIVATE gms_coord MPI::MPI_C PkgConfig::LIBEVENT)
add_executable(bench_adopt bench_adopt.c)
target_link_libraries(bench_adopt PRIVATE gms_coord MPI::MPI_C)
add_executable(bench_idle bench_idle.c)
target_link_libraries(bench_idle PRIVATE gms_mpi_harness)
add_dependencies(bench_idle gms-coord gms-keeper)
