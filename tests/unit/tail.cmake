# SPDX-License-Identifier: Apache-2.0
# Unfinished blocks: how far they have come, and what a successor makes of it.
gms_add_test(NAME test_directory_tail SOURCES test_directory_tail.c LIBRARIES gms_directory Threads::Threads)
gms_add_test(NAME test_libgms_tails SOURCES test_libgms_tails.c LIBRARIES gms fake_coordinator)
gms_add_test(NAME test_minillm_tails SOURCES test_minillm_tails.c LIBRARIES minillm_core m TIMEOUT 240)
