# SPDX-License-Identifier: Apache-2.0
# Unfinished blocks through examples/pytorch/gms.py, on two ranks.
if(NOT GMS_SANITIZE)
  add_test(NAME python_tails COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/python_tails.sh ${CMAKE_BINARY_DIR} $<TARGET_FILE:gms>)
  set_tests_properties(python_tails PROPERTIES LABELS mpi TIMEOUT 100 RUN_SERIAL ON SKIP_RETURN_CODE 77
                       ENVIRONMENT "${GMS_TEST_ENVIRONMENT}")
endif()
