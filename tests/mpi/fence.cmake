# Engines that hang or cannot be ended.
gms_add_mpi_test(test_coord_hung)
set_tests_properties(test_coord_hung PROPERTIES TIMEOUT 180)
