/* SPDX-License-Identifier: Apache-2.0
 * What the cluster's files call of each other. */
#ifndef TESTS_SIM_CHECKS_H
#define TESTS_SIM_CHECKS_H

#include "cluster.h"

bool cluster_keys_equal(const struct gms_operation_key *a, const struct gms_operation_key *b);

/* Where an incarnation stands in cluster->incarnations; 0: it has no place, and that is a fault. */
uint32_t cluster_place(struct cluster *cluster, uint64_t incarnation);

/* ---- checks.c: what a rank does, checked as it does it */
void cluster_check_action(struct cluster *cluster, uint32_t rank, const struct gms_action *action);
void cluster_check_event(struct cluster *cluster, uint32_t rank, const struct gms_event *event);
/* Ranks before the same round are in the same state; no rank's epoch falls. */
void cluster_check_digest(struct cluster *cluster, uint32_t rank);
/* What anybody was told before the end of the old world still holds in the new one. */
void cluster_check_restored(struct cluster *cluster);

/* A record of a transaction. */
void cluster_note_store(struct cluster *cluster, uint32_t rank, const struct gms_action *action);

/* ---- effects.c: what operations did on each rank */
void cluster_effect_prepared(struct cluster *cluster, uint32_t rank, uint32_t engine,
                             const struct gms_operation_key *key);
void cluster_effect_decided(struct cluster *cluster, uint32_t rank, const struct gms_action *action);

/* ---- disk.c: the stores */
/* A step of `rank` has records: one transaction with the snapshot, on its way from now on. */
void cluster_disk_begin(struct cluster *cluster, uint32_t rank);
void cluster_disk_free(struct cluster_disk *disk);
/* The next record's answer of `rank`: all records of a transaction have the same. */
void cluster_disk_answer(struct cluster *cluster, uint32_t rank, struct gms_event *event);

/* ---- print.c */
void cluster_print_action(const struct cluster *cluster, uint32_t rank, const struct gms_action *action);

/* ---- cluster.c */
/* Carries out the actions of a step, up to the rank's end if that comes first. */
void cluster_act(struct cluster *cluster, uint32_t rank);

#endif
