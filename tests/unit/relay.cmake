# Tests of runtime/gms-relay: what needs no sockets, and the program itself between a client, a coordinator and engines
# that the test plays.
foreach(name request http lines call)
  gms_add_test(NAME test_relay_${name} SOURCES test_relay_${name}.c LIBRARIES gms_relay_parts)
endforeach()
foreach(name server failover openai recordings)
  gms_add_test(NAME test_relay_${name} SOURCES test_relay_${name}.c relay_bench.c LIBRARIES gms_relay_parts gms_wire gms_base
               TIMEOUT 120)
  add_dependencies(test_relay_${name} gms-relay)
  set_tests_properties(test_relay_${name} PROPERTIES ENVIRONMENT "GMS_BIN=${CMAKE_BINARY_DIR}")
endforeach()
target_compile_definitions(test_relay_recordings PRIVATE "RELAY_RECORDINGS=\"${CMAKE_CURRENT_SOURCE_DIR}/relay_recordings\"")
