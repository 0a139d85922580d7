# What kv pools may have, parking presets, gms-ctl park and wake.
gms_add_mpi_test(test_coord_budget)
add_dependencies(test_coord_budget gms-ctl)
