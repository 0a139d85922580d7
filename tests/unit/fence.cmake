gms_add_test(NAME test_progress SOURCES test_progress.c LIBRARIES gms_coord)
