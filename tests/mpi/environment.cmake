gms_add_mpi_test(test_coord_environment)
add_executable(gms-coord-other ${PROJECT_SOURCE_DIR}/coord/main.c)
target_compile_definitions(gms-coord-other PRIVATE "GMS_COORD_VERSION=\"0.0.0-other\"")
target_link_libraries(gms-coord-other PRIVATE gms_coord MPI::MPI_C)
add_dependencies(test_coord_environment gms-exec gms-coord-other)
gms_add_mpi_test(test_coord_lock)
gms_add_mpi_test(test_coord_told) # V44
