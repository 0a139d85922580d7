/* SPDX-License-Identifier: Apache-2.0
 * What must always hold in a cluster; a violation goes to cluster_fail. Called by cluster.c for every action. */
#ifndef TESTS_SIM_CLUSTER_CHECK_H
#define TESTS_SIM_CLUSTER_CHECK_H

#include "cluster.h"

bool cluster_keys_equal(const struct gms_operation_key *a, const struct gms_operation_key *b);
void cluster_note_store(struct cluster *cluster, uint32_t rank, const struct gms_action *action);
void cluster_must_be_stored(struct cluster *cluster, uint32_t rank, enum gms_action_type type, enum gms_store_kind kind,
                            uint64_t incarnation, const struct gms_operation_key *key);
void cluster_check_outcome(struct cluster *cluster, uint32_t rank, uint32_t engine, const struct gms_outcome *outcome);
bool cluster_incarnation_fits(struct cluster *cluster, uint64_t incarnation, uint32_t engine);
void cluster_check_promote(struct cluster *cluster, uint32_t rank, const struct gms_action *action);
void cluster_check_serving(struct cluster *cluster, uint32_t rank, const struct gms_action *action);
void cluster_check_ballot(struct cluster *cluster, uint32_t rank, const struct gms_ballot *ballot);
void cluster_check_digest(struct cluster *cluster, uint32_t rank);

#endif
