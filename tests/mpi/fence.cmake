# Engines that hang or cannot be ended.
gms_add_mpi_test(test_coord_hung)
set_tests_properties(test_coord_hung PROPERTIES TIMEOUT 180)
# KV of another identity, and contents that are not what was sealed.
gms_add_mpi_test(test_coord_identity)
target_link_libraries(test_coord_identity PRIVATE gms_directory)
# Coordinators that did not run for a while.
gms_add_mpi_test(test_coord_gap)
