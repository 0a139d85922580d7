/* SPDX-License-Identifier: Apache-2.0
 *
 * A decoder-only transformer: RMSNorm, rotary grouped-head attention, SwiGLU, untied output head.
 *
 * Tensor parallel over `world_size` ranks: query heads, KV heads, MLP columns and vocabulary columns are split, the
 * embedding and the norms are on every rank. A rank's shard is a slice of one seeded global model: the same seed gives
 * the same model for every world size (up to the rounding of the partial sums).
 *
 * Partial sums (attention output, MLP down projection) are gathered from all ranks and added in rank order, so all
 * ranks hold bit-equal activations.
 */
#ifndef MINILLM_MODEL_H
#define MINILLM_MODEL_H

#include "kv.h"

#include <stddef.h>
#include <stdint.h>

enum { MODEL_NAME_BYTES = 48, MODEL_CONTEXT_TOKENS = 2048 };

struct model_config {
    uint32_t layers, width, heads, kv_heads, mlp, vocabulary;
    uint32_t block_tokens;
    uint32_t rank, world_size;
    uint64_t seed;
};

/* Checks that the sizes fit each other and split evenly. NULL when they do, else what is wrong (static text). */
const char *model_config_check(const struct model_config *config);

static inline uint32_t model_head_dim(const struct model_config *c)
{
    return c->width / c->heads;
}
struct kv_geometry model_kv_geometry(const struct model_config *config);

/* The tensors of a shard, in memory order, without gaps. */
struct model_tensor {
    char name[MODEL_NAME_BYTES];
    size_t offset_bytes, bytes;
};
uint32_t model_tensor_count(const struct model_config *config);
struct model_tensor model_tensor_at(const struct model_config *config, uint32_t index);
size_t model_shard_bytes(const struct model_config *config);
/* Writes this rank's shard of the seeded weights; `weights` has model_shard_bytes. */
void model_generate(const struct model_config *config, void *weights);

/* The ranks of one engine. Gathers `count` floats of every rank in rank order into `all`; blocks; cannot fail (an
 * engine that lost a rank ends). May be NULL when world_size is 1. */
struct model_group {
    void (*gather)(void *context, const float *mine, float *all, size_t count);
    void *context;
};

struct model_row {
    uint32_t token;
    uint32_t position;
    const uint32_t *blocks; /* borrowed; slots of this sequence, enough for `position` */
    uint32_t wants_logits;
};

struct model; /* opaque */

/* `weights` is borrowed and only read. NULL when memory is short. max_rows: the largest batch. */
struct model *model_open(const struct model_config *config, const void *weights, uint32_t max_rows,
                         const struct model_group *group);
void model_close(struct model *model);
const struct model_config *model_get_config(const struct model *model);

/* Called before each layer of a forward pass; for drills that end a rank in the middle. */
typedef void (*model_layer_hook)(void *context, uint32_t layer);

/*
 * Computes `row_count` <= max_rows tokens and stores their K and V. All earlier positions of each row's sequence must
 * be in its blocks or earlier in the same batch. ret_logits: the rows that want logits, in order, vocabulary floats
 * each, borrowed until the next call; equal on all ranks.
 */
void model_forward(struct model *model, const struct model_row *rows, uint32_t row_count, void *kv_base,
                   model_layer_hook hook, void *hook_context, const float **ret_logits);

#endif
