/* tests/planner/spec_sweep.c - every key of the table, each treated badly in the same ways:
 * left out, misspelt, of the wrong type, out of range on either side, absurd. A file made of the
 * table's own examples is the base. Each change gives one error with file:line:column, or is
 * accepted only where an independent reading of the text says that it is within the range.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/spec_internal.h"
#include "tests/check.h"

enum { MAX_TEXT = 1 << 14 };

/* What is done to one key of the base. */
typedef struct edit {
    uint32_t key; /* ZINF_NONE: nothing */
    bool left_out;
    const char *word, *value; /* NULL: as in the table */
} edit;

static bool is_cluster_key(const zinf_spec_key *key)
{
    return !strncmp(key->path, "cluster", 7);
}

static bool is_below(const char *path, const char *section)
{
    size_t n = strlen(section);

    return !strncmp(path, section, n) && path[n] == '.';
}

/* Writes the base with the change; *ret_line and *ret_column are where the changed key stands. */
static size_t write_yaml(bool is_cluster, edit change, char *text, unsigned *ret_line,
                         unsigned *ret_column)
{
    const zinf_spec_key *changed = zinf_spec_key_at(change.key), *key;
    unsigned line = 0;
    size_t n = 0;

    *ret_line = *ret_column = 0;
    for (uint32_t i = 0; (key = zinf_spec_key_at(i)); i++) {
        bool is_changed = i == change.key;
        unsigned depth = 0;
        if (is_cluster_key(key) != is_cluster)
            continue;
        if (is_changed && change.left_out)
            continue;
        if (changed && (change.left_out || change.value) && is_below(key->path, changed->path))
            continue;
        for (const char *s = key->path; *s; s++)
            depth += *s == '.';
        const char *word = is_changed && change.word ? change.word : zinf_spec_key_word(key->path);
        const char *value = is_changed && change.value ? change.value :
            key->type == ZINF_SPEC_SECTION ? "" : key->example;
        n += (size_t)snprintf(text + n, MAX_TEXT - n, "%*s%s: %s\n", (int)(2 * depth), "", word,
                              value);
        line++;
        if (is_changed) {
            *ret_line = line;
            *ret_column = 2 * depth + 1;
        }
    }
    return n;
}

/* Parses the changed base; CHECKs the form of the error; returns whether it was accepted. */
static bool accepts(edit change, zinf_error *ret_err, unsigned *ret_line, unsigned *ret_column)
{
    static char text[MAX_TEXT];
    bool is_cluster = is_cluster_key(zinf_spec_key_at(change.key));
    size_t n = write_yaml(is_cluster, change, text, ret_line, ret_column);
    unsigned line, column;
    zinf_cluster cluster;
    zinf_model model;
    zinf_status status;

    CHECK(n < MAX_TEXT);
    *ret_err = (zinf_error){0};
    if (is_cluster)
        status = zinf_cluster_parse("t.yaml", text, n, &cluster, ret_err);
    else
        status = zinf_model_parse("t.yaml", text, n, NULL, &model, ret_err);
    if (!status)
        return true;
    CHECK(status == ZINF_BAD_INPUT && ret_err->status == status);
    CHECK_MESSAGE(sscanf(ret_err->text, "t.yaml:%u:%u: ", &line, &column) == 2 && line && column &&
                  !strchr(ret_err->text, '\n') && strlen(ret_err->text) + 1 < sizeof ret_err->text,
                  "%s", ret_err->text);
    return false;
}

/* Must be refused at the changed key's line, with a text that contains `expected`. */
static void check_refused(edit change, const char *expected)
{
    const zinf_spec_key *key = zinf_spec_key_at(change.key);
    unsigned line, column;
    zinf_error err;
    char place[40];

    CHECK_MESSAGE(!accepts(change, &err, &line, &column), "%s: %s was accepted", key->path,
                  change.value ? change.value : change.word ? change.word : "leaving it out");
    snprintf(place, sizeof place, "t.yaml:%u:", line);
    CHECK_MESSAGE(change.left_out || !strncmp(err.text, place, strlen(place)),
                  "%s: not in line %u: %s", key->path, line, err.text);
    CHECK_MESSAGE(strstr(err.text, expected), "%s: \"%s\" is not in: %s", key->path, expected,
                  err.text);
}

static void the_examples_of_the_table_are_valid(void)
{
    const uint32_t roots[] = {zinf_spec_key_find("model"), zinf_spec_key_find("cluster")};
    unsigned line, column;
    zinf_error err;

    for (unsigned i = 0; i < 2; i++)
        CHECK_MESSAGE(accepts((edit){.key = roots[i]}, &err, &line, &column), "%s", err.text);
}

static void every_required_key_is_missed(void)
{
    const zinf_spec_key *key;
    unsigned line, column, n_required = 0;
    zinf_error err;

    for (uint32_t i = 0; (key = zinf_spec_key_at(i)); i++) {
        edit change = {.key = i, .left_out = true};
        if (!key->fallback) {
            n_required++;
            char expected[64];
            snprintf(expected, sizeof expected, "\"%.40s\"", strchr(key->path, '.') ?
                     zinf_spec_key_word(key->path) : key->path);
            if (!strcmp(key->path, "model") || !strcmp(key->path, "cluster"))
                snprintf(expected, sizeof expected, "t.yaml:1:1: the ");
            check_refused(change, key->path[0] == 'c' && !strchr(key->path, '.') ?
                          "t.yaml:1:1: the file is empty" : expected);
        } else if (key->type != ZINF_SPEC_SECTION) {
            CHECK_MESSAGE(accepts(change, &err, &line, &column), "%s may be left out, but: %s",
                          key->path, err.text);
        } else {
            accepts(change, &err, &line, &column); /* a link may be needed */
        }
    }
    CHECK(n_required > 20);
}

static void every_misspelt_key_names_the_right_one(void)
{
    const zinf_spec_key *key;

    for (uint32_t i = 0; (key = zinf_spec_key_at(i)); i++) {
        const char *right = zinf_spec_key_word(key->path);
        char word[64], expected[80];
        snprintf(word, sizeof word, "%.60sq", right);
        snprintf(expected, sizeof expected, "unknown key \"%s\"", word);
        check_refused((edit){.key = i, .word = word}, expected);
        snprintf(expected, sizeof expected, "did you mean \"%.60s\"?", right);
        check_refused((edit){.key = i, .word = word}, expected);
        for (size_t j = 0; right[j]; j++) { /* any letter replaced */
            snprintf(word, sizeof word, "%.60s", right);
            word[j] = right[j] == 'q' ? 'x' : 'q';
            check_refused((edit){.key = i, .word = word}, "did you mean \"");
        }
    }
}

/* May a value of this text be accepted for its type alone? */
static bool type_allows(const zinf_spec_key *key, const char *value)
{
    switch (key->type) {
    case ZINF_SPEC_STRING:
        return strcmp(value, "[1, 2]") && strcmp(value, "{a: 1}") && strcmp(value, "") &&
               strcmp(value, "~") && strcmp(value, "''");
    case ZINF_SPEC_PATHS:
        return !strcmp(value, "[1, 2]");
    case ZINF_SPEC_BOOL:
        return !strcmp(value, "true");
    case ZINF_SPEC_BYTES: /* a value with a unit may stand in quotes, and bytes need no unit */
        return !strcmp(value, "'12'") && key->min <= 12;
    default:
        return false;
    }
}

static void every_wrong_type_is_refused(void)
{
    static const char *const values[] = {
        "[1, 2]", "{a: 1}", "some words", "true", "'12'", "", "~", "''", "[]", "[[1]]", "12 qq",
        "0x10", "1_000", "1,5", "|\n            12",
    };
    const zinf_spec_key *key;

    for (uint32_t i = 0; (key = zinf_spec_key_at(i)); i++)
        for (unsigned j = 0; j < sizeof values / sizeof *values; j++) {
            /* An empty value leaves what follows as the section's contents: as in the base. */
            if (key->type == ZINF_SPEC_SECTION && !*values[j])
                continue;
            if (key->type == ZINF_SPEC_STRING && j >= 8 && values[j][0] != '[')
                continue;
            if (!type_allows(key, values[j]))
                check_refused((edit){.key = i, .value = values[j]}, key->path);
        }
}

static bool is_number(const zinf_spec_key *key)
{
    return key->type == ZINF_SPEC_INTEGER || key->type == ZINF_SPEC_INTEGER32 ||
           key->type == ZINF_SPEC_REAL || key->type == ZINF_SPEC_BYTES ||
           key->type == ZINF_SPEC_QUANTITY;
}

static const char *base_unit(const zinf_spec_key *key)
{
    static const char *const names[ZINF_N_UNITS] = {"", " B", " B/s", " FLOP/s", " params/s",
                                                    " s"};
    return names[key->unit];
}

static void every_range_is_kept_on_both_sides(void)
{
    const zinf_spec_key *key;
    unsigned line, column, n_numbers = 0;
    zinf_error err;
    char value[80];

    for (uint32_t i = 0; (key = zinf_spec_key_at(i)); i++) {
        if (!is_number(key))
            continue;
        n_numbers++;
        bool whole = key->type != ZINF_SPEC_REAL && key->type != ZINF_SPEC_QUANTITY;
        double below = whole ? key->min - 1 : key->min > 0 ? key->min * 0.999 : -1e-9;
        double above = whole ? key->max + (key->max < 0x1p52 ? 1 : key->max / 0x1p50) :
            key->max * 1.001;
        snprintf(value, sizeof value, whole ? "%.0f%s" : "%.17g%s", below, base_unit(key));
        check_refused((edit){.key = i, .value = value}, "out of range");
        check_refused((edit){.key = i, .value = value}, "allowed is ");
        snprintf(value, sizeof value, whole ? "%.0f%s" : "%.17g%s", above, base_unit(key));
        check_refused((edit){.key = i, .value = value}, "out of range");
        /* The ends themselves are in range; a rule between keys may still refuse them. */
        for (unsigned end = 0; end < 2; end++) {
            snprintf(value, sizeof value, whole ? "%.0f%s" : "%.17g%s",
                     end ? key->max : key->min, base_unit(key));
            if (!accepts((edit){.key = i, .value = value}, &err, &line, &column))
                CHECK_MESSAGE(!strstr(err.text, "out of range") && !strstr(err.text, "expects"),
                              "%s", err.text);
        }
    }
    CHECK(n_numbers > 40);
}

static void absurd_values_are_refused_or_in_range(void)
{
    static const char *const values[] = {
        "1e8", "1.5", "0", "-1", "NaN", ".nan", "inf", "-.inf", "1e30", "-1e30", "1e400",
        "99999999999999999999", "0.0000001", "-0", "+1", "1e", ".", "-", "1e-400", "00",
    };
    const zinf_spec_key *key;
    unsigned line, column;
    zinf_error err;
    char value[80];

    for (uint32_t i = 0; (key = zinf_spec_key_at(i)); i++)
        for (unsigned j = 0; j < 2 * (sizeof values / sizeof *values); j++) {
            const char *unit = j % 2 ? base_unit(key) : "", *number = values[j / 2];
            snprintf(value, sizeof value, "%s%s", number, unit);
            if (!accepts((edit){.key = i, .value = value}, &err, &line, &column))
                continue;
            CHECK_MESSAGE(is_number(key) || key->type == ZINF_SPEC_STRING, "%s: %s was accepted",
                          key->path, value);
            if (!is_number(key))
                continue;
            bool digits = number[strspn(number, "0123456789")] == 0;
            double v = strtod(number, NULL);
            CHECK_MESSAGE(v >= key->min && v <= key->max, "%s: %s was accepted", key->path, value);
            CHECK_MESSAGE(digits || key->type == ZINF_SPEC_REAL || (key->unit && *unit),
                          "%s: %s was accepted", key->path, value);
            CHECK_MESSAGE(digits || *unit || key->unit == ZINF_UNIT_NONE,
                          "%s: %s without unit was accepted", key->path, value);
        }
}

int main(void)
{
    RUN(the_examples_of_the_table_are_valid);
    RUN(every_required_key_is_missed);
    RUN(every_misspelt_key_names_the_right_one);
    RUN(every_wrong_type_is_refused);
    RUN(every_range_is_kept_on_both_sides);
    RUN(absurd_values_are_refused_or_in_range);
    return check_finish();
}
