/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include "tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Scales of the seeded weights. A trained model reacts to its context; a random one must be made to, or exactness of
 * adopted KV could not be seen in the tokens. SCORE sharpens attention (standard deviation of scores), ATTENTION and
 * MLP weigh a layer's contribution against the residual, LOGIT is the standard deviation of logits.
 * tests/unit/test_minillm_sensitivity measures what these achieve.
 */
#define SCORE_SCALE     4.0
#define ATTENTION_SCALE 3.0
#define MLP_SCALE       1.5
#define LOGIT_SCALE     3.0

enum tensor_kind {
    T_EMBEDDING,
    T_NORM_ATTENTION,
    T_QUERY,
    T_KEY,
    T_VALUE,
    T_OUTPUT,
    T_NORM_MLP,
    T_GATE,
    T_UP,
    T_DOWN,
    T_NORM_FINAL,
    T_HEAD,
    T_KINDS
};

enum { LAYER_TENSORS = T_DOWN - T_NORM_ATTENTION + 1 };

/* A tensor as a matrix of the global model and which part of it a rank has. */
struct shape {
    const char *name;
    uint32_t rows, columns;         /* global */
    uint32_t first_row, local_rows; /* of this rank */
    uint32_t first_column, local_columns;
    double deviation; /* of its elements; 0: all ones */
};

static uint32_t tensor_kind_at(const struct model_config *c, uint32_t index, uint32_t *ret_layer)
{
    *ret_layer = 0;
    if (index == 0)
        return T_EMBEDDING;
    if (index > c->layers * LAYER_TENSORS)
        return index - c->layers * LAYER_TENSORS == 1 ? T_NORM_FINAL : T_HEAD;
    *ret_layer = (index - 1) / LAYER_TENSORS;
    return T_NORM_ATTENTION + (index - 1) % LAYER_TENSORS;
}

static struct shape matrix(const char *name, uint32_t rows, uint32_t columns, double deviation)
{
    return (struct shape){name, rows, columns, 0, rows, 0, columns, deviation};
}

static struct shape split_columns(const struct model_config *c, struct shape s)
{
    s.local_columns = s.columns / c->world_size;
    s.first_column = c->rank * s.local_columns;
    return s;
}

static struct shape split_rows(const struct model_config *c, struct shape s)
{
    s.local_rows = s.rows / c->world_size;
    s.first_row = c->rank * s.local_rows;
    return s;
}

static struct shape tensor_shape(const struct model_config *c, uint32_t kind)
{
    const uint32_t d = c->width, kv = c->kv_heads * model_head_dim(c);
    const double unit = 1.0 / sqrt(d);
    switch ((enum tensor_kind)kind) {
    case T_EMBEDDING:
        return matrix("embedding", c->vocabulary, d, 1.0);
    case T_NORM_ATTENTION:
        return matrix("norm_attention", 1, d, 0);
    case T_QUERY:
        return split_columns(c, matrix("query", d, d, unit * sqrt(SCORE_SCALE)));
    case T_KEY:
        return split_columns(c, matrix("key", d, kv, unit * sqrt(SCORE_SCALE)));
    case T_VALUE:
        return split_columns(c, matrix("value", d, kv, unit));
    case T_OUTPUT:
        return split_rows(c, matrix("output", d, d, unit * ATTENTION_SCALE));
    case T_NORM_MLP:
        return matrix("norm_mlp", 1, d, 0);
    case T_GATE:
        return split_columns(c, matrix("gate", d, c->mlp, unit));
    case T_UP:
        return split_columns(c, matrix("up", d, c->mlp, unit));
    case T_DOWN:
        return split_rows(c, matrix("down", c->mlp, d, MLP_SCALE / sqrt(c->mlp)));
    case T_NORM_FINAL:
        return matrix("norm_final", 1, d, 0);
    case T_HEAD:
        return split_columns(c, matrix("head", d, c->vocabulary, unit * LOGIT_SCALE));
    case T_KINDS:
        break;
    }
    abort();
}

static size_t shape_floats(const struct shape *s)
{
    return (size_t)s->local_rows * s->local_columns;
}

const char *model_config_check(const struct model_config *c)
{
    if (c->world_size == 0 || c->rank >= c->world_size)
        return "rank is not below the number of ranks";
    if (c->layers == 0 || c->layers > 64)
        return "layers must be 1 to 64";
    if (c->width == 0 || c->width > 4096 || c->mlp == 0 || c->mlp > 16384)
        return "width must be 1 to 4096, mlp 1 to 16384";
    if (c->heads == 0 || c->width % c->heads != 0 || (c->width / c->heads) % 2 != 0)
        return "width must be a multiple of heads, and width / heads even (rotary pairs)";
    if (c->kv_heads == 0 || c->heads % c->kv_heads != 0)
        return "heads must be a multiple of kv-heads";
    if (c->kv_heads % c->world_size != 0)
        return "kv-heads must be a multiple of the number of ranks";
    if (c->mlp % c->world_size != 0)
        return "mlp must be a multiple of the number of ranks";
    if (c->vocabulary < 2 || c->vocabulary > 65536 || c->vocabulary % c->world_size != 0)
        return "vocab must be 2 to 65536 and a multiple of the number of ranks";
    if (c->block_tokens == 0 || c->block_tokens > 256)
        return "block-tokens must be 1 to 256";
    return NULL;
}

struct kv_geometry model_kv_geometry(const struct model_config *c)
{
    return (struct kv_geometry){.layers = c->layers,
                                .block_tokens = c->block_tokens,
                                .kv_heads = c->kv_heads / c->world_size,
                                .head_dim = model_head_dim(c)};
}

uint32_t model_tensor_count(const struct model_config *c)
{
    return 1 + c->layers * LAYER_TENSORS + 2;
}

static size_t kind_bytes(const struct model_config *c, uint32_t kind)
{
    struct shape s = tensor_shape(c, kind);
    return shape_floats(&s) * sizeof(float);
}

struct model_tensor model_tensor_at(const struct model_config *c, uint32_t index)
{
    struct model_tensor tensor = {0};
    uint32_t layer;
    for (uint32_t i = 0; i < index; i++)
        tensor.offset_bytes += kind_bytes(c, tensor_kind_at(c, i, &layer));
    uint32_t kind = tensor_kind_at(c, index, &layer);
    struct shape s = tensor_shape(c, kind);
    tensor.bytes = shape_floats(&s) * sizeof(float);
    if (kind >= T_NORM_ATTENTION && kind <= T_DOWN)
        snprintf(tensor.name, sizeof tensor.name, "layer.%u.%s", layer, s.name);
    else
        snprintf(tensor.name, sizeof tensor.name, "%s", s.name);
    return tensor;
}

size_t model_shard_bytes(const struct model_config *c)
{
    struct model_tensor last = model_tensor_at(c, model_tensor_count(c) - 1);
    return last.offset_bytes + last.bytes;
}

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* About normal, unit variance: the sum of four uniform 16-bit numbers. No libm, so every machine gets the same bits. */
static float normal_from(uint64_t bits)
{
    int32_t sum = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) + (int32_t)(bits >> 32 & 0xffff) +
                  (int32_t)(bits >> 48);
    return (float)(sum - 131070) * (1.0f / 37837.2f);
}

void model_generate(const struct model_config *c, void *weights)
{
    float *out = weights;
    for (uint32_t index = 0; index < model_tensor_count(c); index++) {
        uint32_t layer;
        struct shape s = tensor_shape(c, tensor_kind_at(c, index, &layer));
        uint64_t key = mix(c->seed ^ mix(index));
        float deviation = (float)s.deviation;
        for (uint32_t row = s.first_row; row < s.first_row + s.local_rows; row++)
            for (uint32_t column = s.first_column; column < s.first_column + s.local_columns; column++) {
                uint64_t element = (uint64_t)row * s.columns + column;
                *out++ = deviation == 0 ? 1.0f : deviation * normal_from(mix(key ^ mix(element)));
            }
    }
}

/* ------------------------------------------------------------------------------------------------ forward ----- */

struct layer_weights {
    const float *norm_attention, *query, *key, *value, *output, *norm_mlp, *gate, *up, *down;
};

struct model {
    struct model_config config;
    struct kv_geometry geometry;
    struct model_group group;
    uint32_t max_rows, local_heads, heads_per_kv, local_mlp, local_vocabulary;
    const float *embedding, *norm_final, *head;
    struct layer_weights *layers;
    float *cosines, *sines; /* [context][head_dim / 2] */
    /* Per row of the batch: */
    float *x, *normed, *query, *attention, *partial, *gate, *up, *logits_local, *logits;
    float *gathered; /* [world_size][rows][...] */
    float *scores;   /* [context] */
};

static float *floats(size_t count)
{
    return calloc(count, sizeof(float));
}

static size_t maximum(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void bind_weights(struct model *m, const float *w)
{
    const struct model_config *c = &m->config;
    for (uint32_t index = 0; index < model_tensor_count(c); index++) {
        uint32_t layer;
        uint32_t kind = tensor_kind_at(c, index, &layer);
        struct layer_weights *l = &m->layers[layer];
        const float **places[T_KINDS] = {
            [T_EMBEDDING] = &m->embedding,
            [T_NORM_ATTENTION] = &l->norm_attention,
            [T_QUERY] = &l->query,
            [T_KEY] = &l->key,
            [T_VALUE] = &l->value,
            [T_OUTPUT] = &l->output,
            [T_NORM_MLP] = &l->norm_mlp,
            [T_GATE] = &l->gate,
            [T_UP] = &l->up,
            [T_DOWN] = &l->down,
            [T_NORM_FINAL] = &m->norm_final,
            [T_HEAD] = &m->head,
        };
        *places[kind] = w;
        w += kind_bytes(c, kind) / sizeof(float);
    }
}

struct model *model_open(const struct model_config *config, const void *weights, uint32_t max_rows,
                         const struct model_group *group)
{
    struct model *m = calloc(1, sizeof *m);
    if (m == NULL)
        return NULL;
    m->config = *config;
    m->geometry = model_kv_geometry(config);
    if (group != NULL)
        m->group = *group;
    m->max_rows = max_rows;
    const uint32_t ranks = config->world_size, d = config->width, half = model_head_dim(config) / 2;
    m->local_heads = config->heads / ranks;
    m->heads_per_kv = config->heads / config->kv_heads;
    m->local_mlp = config->mlp / ranks;
    m->local_vocabulary = config->vocabulary / ranks;
    const size_t n = max_rows;
    m->layers = calloc(config->layers, sizeof *m->layers);
    m->cosines = floats((size_t)MODEL_CONTEXT_TOKENS * half);
    m->sines = floats((size_t)MODEL_CONTEXT_TOKENS * half);
    m->x = floats(n * d);
    m->normed = floats(d);
    m->query = floats(n * m->local_heads * model_head_dim(config));
    m->attention = floats((size_t)m->local_heads * model_head_dim(config));
    m->partial = floats(n * d);
    m->gate = floats(m->local_mlp);
    m->up = floats(m->local_mlp);
    m->logits_local = floats(n * m->local_vocabulary);
    m->logits = floats(n * config->vocabulary);
    m->gathered = floats(n * maximum((size_t)ranks * d, config->vocabulary));
    m->scores = floats(MODEL_CONTEXT_TOKENS);
    if (m->layers == NULL || m->cosines == NULL || m->sines == NULL || m->x == NULL || m->normed == NULL ||
        m->query == NULL || m->attention == NULL || m->partial == NULL || m->gate == NULL || m->up == NULL ||
        m->logits_local == NULL || m->logits == NULL || m->gathered == NULL || m->scores == NULL) {
        model_close(m);
        return NULL;
    }
    bind_weights(m, weights);
    for (uint32_t p = 0; p < MODEL_CONTEXT_TOKENS; p++)
        for (uint32_t i = 0; i < half; i++) {
            double angle = p * pow(10000.0, -(double)i / half);
            m->cosines[(size_t)p * half + i] = (float)cos(angle);
            m->sines[(size_t)p * half + i] = (float)sin(angle);
        }
    return m;
}

void model_close(struct model *m)
{
    if (m == NULL)
        return;
    float *owned[] = {m->cosines, m->sines,        m->x,      m->normed,   m->query, m->attention, m->partial, m->gate,
                      m->up,      m->logits_local, m->logits, m->gathered, m->scores};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++)
        free(owned[i]);
    free(m->layers);
    free(m);
}

const struct model_config *model_get_config(const struct model *m)
{
    return &m->config;
}

/* x += the sum of all ranks' partial vectors, in rank order. */
static void add_partial_sums(struct model *m, uint32_t row_count)
{
    const size_t count = (size_t)row_count * m->config.width;
    if (m->config.world_size == 1) {
        tensor_add(m->x, m->partial, count);
        return;
    }
    m->group.gather(m->group.context, m->partial, m->gathered, count);
    for (uint32_t rank = 1; rank < m->config.world_size; rank++)
        tensor_add(m->gathered, m->gathered + rank * count, count);
    tensor_add(m->x, m->gathered, count);
}

/* Query of one row; its K and V go to their place in the row's block. */
static void project(struct model *m, const struct layer_weights *l, uint32_t layer, const struct model_row *row,
                    uint32_t index, void *kv_base)
{
    const struct kv_geometry *g = &m->geometry;
    const uint32_t d = m->config.width, hd = g->head_dim, half = hd / 2;
    const size_t position_floats = kv_position_floats(g);
    float *query = m->query + (size_t)index * m->local_heads * hd;
    float *key = kv_plane(kv_base, g, row->blocks[row->position / g->block_tokens], layer) +
                 (row->position % g->block_tokens) * position_floats;
    float *value = key + kv_plane_floats(g);
    const float *cosines = m->cosines + (size_t)row->position * half, *sines = m->sines + (size_t)row->position * half;

    tensor_rms_norm(m->normed, m->x + (size_t)index * d, l->norm_attention, d);
    tensor_multiply(query, m->normed, l->query, d, (size_t)m->local_heads * hd);
    tensor_multiply(key, m->normed, l->key, d, position_floats);
    tensor_multiply(value, m->normed, l->value, d, position_floats);
    for (uint32_t h = 0; h < m->local_heads; h++)
        tensor_rotate(query + (size_t)h * hd, cosines, sines, hd);
    for (uint32_t h = 0; h < g->kv_heads; h++)
        tensor_rotate(key + (size_t)h * hd, cosines, sines, hd);
}

static void attend(struct model *m, const struct layer_weights *l, uint32_t layer, const struct model_row *row,
                   uint32_t index, void *kv_base)
{
    const struct kv_geometry *g = &m->geometry;
    const uint32_t hd = g->head_dim, context = row->position + 1;
    const size_t position_floats = kv_position_floats(g), plane = kv_plane_floats(g);
    const float scale = 1.0f / sqrtf((float)hd);

    memset(m->attention, 0, (size_t)m->local_heads * hd * sizeof(float));
    for (uint32_t h = 0; h < m->local_heads; h++) {
        const float *query = m->query + ((size_t)index * m->local_heads + h) * hd;
        const size_t head_offset = (size_t)(h / m->heads_per_kv) * hd;
        for (uint32_t p = 0; p < context; p++) {
            const float *k = kv_plane(kv_base, g, row->blocks[p / g->block_tokens], layer) +
                             (p % g->block_tokens) * position_floats + head_offset;
            m->scores[p] = tensor_dot(query, k, hd) * scale;
        }
        tensor_softmax(m->scores, context);
        for (uint32_t p = 0; p < context; p++) {
            const float *v = kv_plane(kv_base, g, row->blocks[p / g->block_tokens], layer) + plane +
                             (p % g->block_tokens) * position_floats + head_offset;
            tensor_add_scaled(m->attention + (size_t)h * hd, v, m->scores[p], hd);
        }
    }
    tensor_multiply(m->partial + (size_t)index * m->config.width, m->attention, l->output, (size_t)m->local_heads * hd,
                    m->config.width);
}

static void feed_forward(struct model *m, const struct layer_weights *l, uint32_t index)
{
    const uint32_t d = m->config.width;
    tensor_rms_norm(m->normed, m->x + (size_t)index * d, l->norm_mlp, d);
    tensor_multiply(m->gate, m->normed, l->gate, d, m->local_mlp);
    tensor_multiply(m->up, m->normed, l->up, d, m->local_mlp);
    tensor_swiglu(m->gate, m->up, m->local_mlp);
    tensor_multiply(m->partial + (size_t)index * d, m->gate, l->down, m->local_mlp, d);
}

static void compute_logits(struct model *m, const struct model_row *rows, uint32_t row_count)
{
    const uint32_t d = m->config.width, local = m->local_vocabulary;
    size_t wanted = 0;
    for (uint32_t i = 0; i < row_count; i++) {
        if (!rows[i].wants_logits)
            continue;
        tensor_rms_norm(m->normed, m->x + (size_t)i * d, m->norm_final, d);
        tensor_multiply(m->logits_local + wanted * local, m->normed, m->head, d, local);
        wanted++;
    }
    if (wanted == 0)
        return;
    if (m->config.world_size == 1) {
        memcpy(m->logits, m->logits_local, wanted * local * sizeof(float));
        return;
    }
    m->group.gather(m->group.context, m->logits_local, m->gathered, wanted * local);
    for (size_t i = 0; i < wanted; i++)
        for (uint32_t rank = 0; rank < m->config.world_size; rank++)
            memcpy(m->logits + i * m->config.vocabulary + (size_t)rank * local,
                   m->gathered + (rank * wanted + i) * local, local * sizeof(float));
}

void model_forward(struct model *m, const struct model_row *rows, uint32_t row_count, void *kv_base,
                   model_layer_hook hook, void *hook_context, const float **ret_logits)
{
    const uint32_t d = m->config.width;
    for (uint32_t i = 0; i < row_count; i++)
        memcpy(m->x + (size_t)i * d, m->embedding + (size_t)rows[i].token * d, d * sizeof(float));
    for (uint32_t layer = 0; layer < m->config.layers; layer++) {
        const struct layer_weights *l = &m->layers[layer];
        if (hook != NULL)
            hook(hook_context, layer);
        for (uint32_t i = 0; i < row_count; i++)
            project(m, l, layer, &rows[i], i, kv_base);
        for (uint32_t i = 0; i < row_count; i++)
            attend(m, l, layer, &rows[i], i, kv_base);
        add_partial_sums(m, row_count);
        for (uint32_t i = 0; i < row_count; i++)
            feed_forward(m, l, i);
        add_partial_sums(m, row_count);
    }
    compute_logits(m, rows, row_count);
    *ret_logits = m->logits;
}
