# SPDX-License-Identifier: Apache-2.0
# The catalogue of faults in its short form, and the reports.
gms_add_test(NAME drill_catalogue SOURCES test_catalogue.c LIBRARIES gms_drill)
gms_add_test(NAME drill_report SOURCES test_report.c LIBRARIES gms_drill)

# A small and slow model: answers last long enough to be interrupted.
set(slow -- minillm --layers 2 --width 64 --mlp 128 --slots 512 --step-delay-us 1500)
set(page ${CMAKE_CURRENT_BINARY_DIR}/catalogue_short)
drill_run(catalogue_short 0 --catalogue short --streams 6 --max-tokens 64 --html ${page}.html --junit ${page}.xml ${slow})
# Its page, in a browser.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  set_tests_properties(drill_catalogue_short PROPERTIES FIXTURES_SETUP drill_page)
  add_test(NAME drill_report_page COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/page_check.py ${page}.html
           ${page}.json ${page}.png)
  set_tests_properties(drill_report_page PROPERTIES LABELS drill TIMEOUT 300 SKIP_RETURN_CODE 77
                       FIXTURES_REQUIRED drill_page)
  # Every row can fail: its sabotage breaks what it is about, and it must say so.
  add_test(NAME drill_sabotage_each COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/sabotage_check.py
           $<TARGET_FILE:gms-failover-test> --streams 4 --max-tokens 48 ${slow} --slots 4096)
  set_tests_properties(drill_sabotage_each PROPERTIES LABELS drill TIMEOUT 600 RUN_SERIAL TRUE
                       ENVIRONMENT "${GMS_TEST_ENVIRONMENT}")
endif()
# The same fault with and without.
drill_run(compare 0 --compare --repeat 1 --streams 6 --max-tokens 64 ${slow})
# An engine that is not exact: equal tokens are not claimed, and where the controls differ is said. Several of the same fault.
drill_run(inexact "0: equal tokens are not claimed: undisturbed, stream" --catalogue sigkill-rank --repeat 2 --streams 4 --max-tokens 64
          ${slow} --moody)
drill_run(inexact_refused "1: --exact, and the engine is not: undisturbed, stream" --exact --streams 2 --max-tokens 48 ${slow} --moody)
# A deployment that somebody else has started.
add_test(NAME drill_against COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/against_check.sh ${CMAKE_BINARY_DIR})
set_tests_properties(drill_against PROPERTIES LABELS drill TIMEOUT 180 RUN_SERIAL TRUE ENVIRONMENT "${GMS_TEST_ENVIRONMENT}")
