# SPDX-License-Identifier: Apache-2.0
# The catalogue of faults in its short form.
gms_add_test(NAME drill_catalogue SOURCES test_catalogue.c LIBRARIES gms_drill)
set_property(TEST drill_catalogue PROPERTY LABELS unit)

# A small and slow model: answers last long enough to be interrupted.
set(slow -- minillm --layers 2 --width 64 --mlp 128 --slots 512 --step-delay-us 1500)
drill_run(catalogue_short 0 --catalogue short --streams 6 --max-tokens 64 ${slow})
