/* SPDX-License-Identifier: Apache-2.0
 *
 * The kv budget's and the parking presets' part of the deployment file, and lists of tags on the wire.
 */
#include "config_support.h"

#include "config/parking.h"
#include "wire/tags.h"

static void test_defaults(void **state)
{
    (void)state;
    assert_accepted(build((struct parts){0}));
    assert_int_equal(config.budget_percent, 90);
    assert_int_equal(config.budget_reserve_bytes, 256 << 20);
    assert_string_equal(config.preset, "shadow_failover");
    assert_int_equal(config.parking_count, 0); /* the engine's word */
    assert_accepted(build((struct parts){.memory = "backend = \"cuda\";"}));
    assert_int_equal(config.budget_reserve_bytes, UINT64_C(4) << 30);
    assert_accepted(build(
        (struct parts){.memory = "backend = \"cuda\";", .more = "budget : { reserve = \"0B\"; percent = 85; };"}));
    assert_int_equal(config.budget_reserve_bytes, 0);
    assert_int_equal(config.budget_percent, 85);
    assert_refused(build((struct parts){.more = "budget : { percent = 0; };"}), 5, "budget.percent: 0 is out of range");
    assert_refused(build((struct parts){.more = "budget : { percent = 101; };"}), 5, "out of range: 1 to 100");
}

static void test_built_in_presets(void **state)
{
    (void)state;
    assert_accepted(build((struct parts){.more = "parking : { preset = \"resident\"; };"}));
    assert_int_equal(config.parking_count, 1);
    assert_string_equal(config.parking[0].name, "*");
    assert_int_equal(config.parking[0].policy, GMS_PARK_KEEP);
    assert_accepted(build((struct parts){.more = "parking : { preset = \"lean\"; };"}));
    assert_int_equal(config.parking[0].policy, GMS_PARK_SAVE);
    assert_refused(build((struct parts){.more = "parking : { preset = \"fast\"; };"}), 5, "no preset \"fast\"");
    assert_refused(build((struct parts){.more = "parking : { preset = \"a b\"; };"}), 5, "may hold a-z, 0-9, _");
}

static void test_own_presets(void **state)
{
    static const char *const wrong[][2] = {
        {"scratch", "is not TAG=POLICY"},        {"=keep", "is not TAG=POLICY"},
        {"a b=keep", "is not TAG=POLICY"},       {"scratch=drop", "none of: keep|swap|release|save"},
        {"weights=release", "weights are kept"}, {"kv=keep", "kv is swapped"},
        {"scratch=swap", "only kv has memory"},  {"*=release", "name the tags that may be released"},
    };
    (void)state;
    assert_accepted(build((struct parts){
        .more = "parking : { preset = \"mine\"; presets = ( { name = \"mine\"; tags = ( \"weights=keep\", \"kv=swap\", "
                "\"scratch=release\", \"state=save\", \"*=keep\" ); }, { name = \"other_one\"; tags = (); } ); };"}));
    assert_int_equal(config.parking_count, 5);
    assert_string_equal(config.parking[2].name, "scratch");
    assert_int_equal(config.parking[2].policy, GMS_PARK_RELEASE);
    struct gms_tag tags[GMS_CONFIG_PARKING_TAGS];
    uint32_t count = 99;
    assert_int_equal(gms_parking_find(&config, "other_one", tags, &count, &error), GMS_OK);
    assert_int_equal(count, 0);
    assert_int_equal(gms_parking_find(&config, "other", tags, &count, &error), GMS_E_NOT_FOUND); /* only a beginning */
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char more[256];
        snprintf(more, sizeof more, "parking : { presets = ( { name = \"mine\"; tags = ( \"%s\" ); } ); };",
                 wrong[i][0]);
        assert_refused(build((struct parts){.more = more}), 5, wrong[i][1]);
    }
    assert_refused(build((struct parts){.more = "parking : { presets = ( { name = \"lean\"; tags = (); } ); };"}), 5,
                   "\"lean\" is there already");
    assert_refused(build((struct parts){.more = "parking : { presets = ( { name = \"a\"; tags = (); },\n{ name = "
                                                "\"a\"; tags = (); } ); };"}),
                   6, "\"a\" is there already");
    assert_refused(build((struct parts){
                       .more = "parking : { presets = ( { name = \"a\"; tags = ( \"x=keep\", \"x=save\" ); } ); };"}),
                   5, "stands there twice");
    assert_refused(build((struct parts){.more = "parking : { presets = ( { name = \"a\"; } ); };"}), 5,
                   "parking.presets[].tags: is missing");
    assert_refused(build((struct parts){.more = "parking : { presets = ( \"a\" ); };"}), 5, "is not a group");
    char many[4096] = "parking : { preset = \"a\"; presets = ( { name = \"a\"; tags = ( \"t0=keep\"";
    for (int i = 1; i <= GMS_MAX_TAGS; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), ", \"t%d=keep\"", i);
    snprintf(many + strlen(many), sizeof many - strlen(many), " ); } ); };");
    assert_refused(build((struct parts){.more = many}), 5, "has more than 32 tags");
}

/* Which setting a node's older copy differs in. */
static void test_differences_by_name(void **state)
{
    static struct gms_config first;
    static const struct {
        struct parts parts;
        const char *name;
    } rows[] = {
        {{.more = "parking : { preset = \"lean\"; };"}, "parking.preset"},
        {{.more = "parking : { presets = ( { name = \"a\"; tags = (); } ); };"}, "parking.presets"},
        {{.more = "budget : { percent = 89; };"}, "budget.percent"},
        {{.memory = "capacity_of = ( { rank = 1; capacity = \"1GiB\"; } );"}, "memory.capacity_of"},
        {{.more = "environment : { set = ( \"A=1\" ); };"}, "environment.set"},
        {{.more = "hooks : { on_serving = ( \"/bin/true\" ); };"}, "hooks.on_serving"},
    };
    (void)state;
    assert_accepted(build((struct parts){0}));
    first = config;
    assert_null(gms_config_difference(&first, &config));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_accepted(build(rows[i].parts));
        const char *name = gms_config_difference(&first, &config);
        assert_non_null(name);
        assert_string_equal(name, rows[i].name);
    }
}

static void test_tags_on_the_wire(void **state)
{
    struct gms_tag_report tags[GMS_MAX_TAGS] = {
        {.tag = {"weights", GMS_PARK_KEEP}, .bytes = 1, .park_ns = 2, .wake_ns = UINT64_MAX},
        {.tag = {"state", GMS_PARK_SAVE}, .bytes = UINT64_C(1) << 40}};
    struct gms_tag_report back[GMS_MAX_TAGS];
    uint8_t packed[GMS_TAGS_BYTES];
    uint32_t count = 0;
    (void)state;
    const uint32_t bytes = gms_tags_pack(tags, 2, packed);
    assert_int_equal(bytes, 2 * 29 + 7 + 5);
    struct gms_bytes whole = {packed, bytes};
    assert_true(gms_tags_unpack(&whole, back, &count));
    assert_int_equal(count, 2);
    assert_memory_equal(back, tags, 2 * sizeof tags[0]);
    for (uint32_t cut = 1; cut < bytes; cut++) { /* whole entries are a list of their own */
        struct gms_bytes part = {packed, cut};
        assert_int_equal(gms_tags_unpack(&part, back, &count), cut == 29 + 7);
        assert_int_equal(count, cut == 29 + 7);
    }
    packed[0] = 9; /* no such policy */
    assert_false(gms_tags_unpack(&whole, back, &count));
    packed[0] = 1;
    packed[28] = 0; /* no name */
    assert_false(gms_tags_unpack(&whole, back, &count));
    packed[28] = 255;
    assert_false(gms_tags_unpack(&whole, back, &count));
    packed[28] = 7;
    packed[30] = '\0'; /* a name of two */
    assert_false(gms_tags_unpack(&whole, back, &count));
    for (uint32_t i = 0; i < GMS_MAX_TAGS; i++) {
        snprintf(tags[i].tag.name, GMS_NAME_BYTES, "%063u", i);
        tags[i].tag.policy = GMS_PARK_KEEP;
    }
    static uint8_t most[GMS_TAGS_BYTES + 64];
    whole = (struct gms_bytes){most, gms_tags_pack(tags, GMS_MAX_TAGS, most)};
    assert_true(gms_tags_unpack(&whole, back, &count));
    assert_int_equal(count, GMS_MAX_TAGS);
    memcpy(most + whole.length, most, 29 + 63); /* one too many */
    whole.length += 29 + 63;
    assert_false(gms_tags_unpack(&whole, back, &count));
    assert_true(gms_tags_unpack(&(struct gms_bytes){NULL, 0}, back, &count));
    assert_int_equal(count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),         cmocka_unit_test(test_built_in_presets),
        cmocka_unit_test(test_own_presets),      cmocka_unit_test(test_differences_by_name),
        cmocka_unit_test(test_tags_on_the_wire),
    };
    return cmocka_run_group_tests_name("parking", tests, NULL, NULL);
}
