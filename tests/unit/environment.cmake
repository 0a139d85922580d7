gms_add_test(NAME test_environment SOURCES test_environment.c LIBRARIES gms_coord gms_config)
