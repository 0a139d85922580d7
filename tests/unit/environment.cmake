gms_add_test(NAME test_environment SOURCES test_environment.c LIBRARIES gms_coord gms_config)
gms_add_test(NAME test_address SOURCES test_address.c LIBRARIES gms_config)
