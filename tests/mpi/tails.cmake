# SPDX-License-Identifier: Apache-2.0
# Unfinished blocks, agreed over real coordinators.
gms_add_mpi_test(test_coord_tails)
