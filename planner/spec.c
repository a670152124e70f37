/* planner/spec.c - fills zinf_model and zinf_cluster from YAML by the table of spec_keys.c.
 *
 * One walk over the tree: every key of the file is looked up, every value is read by its row's
 * type and range; then defaults are filled in and spec_check.c looks at the whole. The first
 * failure ends the reading, so that a file gives exactly one error.
 */
#include "planner/spec_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "runtime/hf_config.h"

enum { MAX_MESSAGE = 800, MAX_FILE_NAME = 150, MAX_PATH = 80 };

/* ---- messages ---- */

zinf_excerpt zinf_spec_excerpt(const char *text)
{
    enum { KEEP = 48 };
    const size_t all = strnlen(text, KEEP + 1);
    zinf_excerpt excerpt = {.text = "\""};
    size_t n = all < KEEP ? all : KEEP;

    memcpy(excerpt.text + 1, text, n);
    while (all > KEEP && n && (unsigned char)text[n - 1] & 0x80) /* no half characters */
        n--;
    strcpy(excerpt.text + 1 + n, all > KEEP ? "..." : "");
    zinf_plain_text(excerpt.text + 1);
    strcat(excerpt.text, "\"");
    return excerpt;
}

zinf_status zinf_spec_fail(const zinf_spec_file *file, zinf_spec_mark mark, const char *format, ...)
{
    char message[MAX_MESSAGE];
    size_t n = strlen(file->name);
    const char *name = n > MAX_FILE_NAME ? file->name + n - MAX_FILE_NAME : file->name;
    va_list args;

    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (mark.line == ZINF_SPEC_SET)
        return zinf_fail(file->err, ZINF_BAD_INPUT, "--set: %s", message);
    if (file->plain)
        return zinf_fail(file->err, ZINF_BAD_INPUT, "%s%s: %s", name == file->name ? "" : "...",
                         name, message);
    return zinf_fail(file->err, ZINF_BAD_INPUT, "%s%s:%u:%u: %s", name == file->name ? "" : "...",
                     name, mark.line ? mark.line : 1, mark.column ? mark.column : 1, message);
}

bool zinf_spec_given(const zinf_spec_file *file, const char *path)
{
    uint32_t index = zinf_spec_key_find(path);

    return index != ZINF_NONE && file->value[index].line;
}

zinf_spec_mark zinf_spec_at(const zinf_spec_file *file, const char *path)
{
    char section[MAX_PATH];
    uint32_t index = zinf_spec_key_find(path);

    if (index != ZINF_NONE && file->value[index].line)
        return file->value[index];
    snprintf(section, sizeof section, "%s", path);
    for (char *dot = strrchr(section, '.'); dot; dot = strrchr(section, '.')) {
        *dot = 0;
        index = zinf_spec_key_find(section);
        if (index != ZINF_NONE && file->key[index].line)
            return file->key[index];
    }
    return (zinf_spec_mark){1, 1};
}

static zinf_spec_mark mark_of(const zinf_yaml_node *node)
{
    return (zinf_spec_mark){node->line, node->column};
}

static const char *type_words(const zinf_spec_key *key)
{
    static const char *const quantities[ZINF_N_UNITS] = {
        "a number", "a size in bytes", "a rate in bytes per second", "a rate in FLOP/s",
        "a rate in params/s", "a time",
    };

    switch (key->type) {
    case ZINF_SPEC_SECTION:
    case ZINF_SPEC_SOURCE:
        return "a mapping";
    case ZINF_SPEC_INTEGER:
    case ZINF_SPEC_INTEGER32:
        return "an integer";
    case ZINF_SPEC_BOOL:
        return "true or false";
    case ZINF_SPEC_CHOICE:
    case ZINF_SPEC_DTYPE:
        return "a word";
    case ZINF_SPEC_STRING:
        return "text";
    case ZINF_SPEC_PATHS:
        return "a list of directories";
    case ZINF_SPEC_BETAS:
        return "a list of two numbers";
    default:
        return quantities[key->unit];
    }
}

/* "model.layers expects an integer, such as 12; got ... (why)" */
static zinf_status fail_type(const zinf_spec_file *file, const zinf_yaml_node *node,
                             const zinf_spec_key *key, const char *why)
{
    zinf_excerpt got = zinf_spec_excerpt(node->text);
    const char *kind = node->kind == ZINF_YAML_LIST ? "a list" :
        node->kind == ZINF_YAML_MAPPING ? "a mapping" :
        node->quoted ? "the text " : *node->text ? "" : "nothing";

    if (node->kind != ZINF_YAML_SCALAR || (!node->quoted && !*node->text))
        got.text[0] = 0;
    return zinf_spec_fail(file, mark_of(node), "%s expects %s, such as %s; got %s%s%s%s",
                          key->path, type_words(key), key->example, kind, got.text,
                          *why ? ": " : "", why);
}

static zinf_status fail_range(const zinf_spec_file *file, const zinf_yaml_node *node,
                              const zinf_spec_key *key)
{
    char min[40], max[40];
    zinf_excerpt got = zinf_spec_excerpt(node->text);

    return zinf_spec_fail(file, mark_of(node), "%s is out of range: got %s, allowed is %s to %s",
                          key->path, got.text,
                          zinf_value_format(key->min, key->unit, min, sizeof min),
                          zinf_value_format(key->max, key->unit, max, sizeof max));
}

/* ---- values ---- */

/* YAML 1.1 and 1.2 write "nothing" so. */
static bool is_null(const zinf_yaml_node *node)
{
    return node->kind == ZINF_YAML_SCALAR && !node->quoted &&
           (!*node->text || !strcmp(node->text, "~") || !strcasecmp(node->text, "null"));
}

/* Text of key->min to key->max bytes into `to`, which holds one more. */
static zinf_status read_string(const zinf_spec_file *file, const zinf_yaml_node *node,
                               const zinf_spec_key *key, char *to)
{
    size_t n = node->kind == ZINF_YAML_SCALAR ? strlen(node->text) : 0;

    if (node->kind != ZINF_YAML_SCALAR || is_null(node))
        return fail_type(file, node, key, "");
    if (zinf_has_control(node->text, n))
        return fail_type(file, node, key, "line breaks and control characters are not allowed");
    if (n < (size_t)key->min || n > (size_t)key->max)
        return zinf_spec_fail(file, mark_of(node), "%s is %zu bytes long, allowed is %.0f to %.0f",
                              key->path, n, key->min, key->max);
    if (to)
        memcpy(to, node->text, n + 1);
    return ZINF_OK;
}

static zinf_status read_paths(const zinf_spec_file *file, const zinf_yaml_node *node,
                              const zinf_spec_key *key)
{
    zinf_cluster *cluster = (zinf_cluster *)(void *)file->base;
    uint32_t n = 0;

    if (node->kind != ZINF_YAML_LIST)
        return fail_type(file, node, key, "");
    for (uint32_t i = node->child; i != ZINF_NONE; i = file->tree->nodes[i].next, n++) {
        const zinf_yaml_node *item = &file->tree->nodes[i];
        if (n == ZINF_MAX_PATHS)
            return zinf_spec_fail(file, mark_of(item), "%s has more than %d entries", key->path,
                                  ZINF_MAX_PATHS);
        zinf_status status = read_string(file, item, key, cluster->nvme.paths[n]);
        if (status)
            return status;
        for (uint32_t j = 0; j < n; j++)
            if (!strcmp(cluster->nvme.paths[j], cluster->nvme.paths[n]))
                return zinf_spec_fail(file, mark_of(item), "%s names %s twice; each drive's "
                                      "directory belongs here once", key->path,
                                      zinf_spec_excerpt(item->text).text);
    }
    if (!n)
        return zinf_spec_fail(file, mark_of(node), "%s is an empty list; name at least one "
                              "directory, or leave the section nvme out", key->path);
    cluster->nvme.n_paths = n;
    return ZINF_OK;
}

static zinf_status read_betas(const zinf_spec_file *file, const zinf_yaml_node *node,
                              const zinf_spec_key *key)
{
    zinf_model *model = (zinf_model *)(void *)file->base;
    double *betas[2] = {&model->beta1, &model->beta2};
    uint32_t n = 0;

    if (node->kind != ZINF_YAML_LIST)
        return fail_type(file, node, key, "");
    for (uint32_t i = node->child; i != ZINF_NONE; i = file->tree->nodes[i].next, n++) {
        const zinf_yaml_node *item = &file->tree->nodes[i];
        double value = 0;
        zinf_why why = {""};
        zinf_value_result result = ZINF_VALUE_BAD;
        if (item->kind == ZINF_YAML_SCALAR && !item->quoted)
            result = zinf_value_real(item->text, &value, &why);
        if (result == ZINF_VALUE_BAD)
            return fail_type(file, item, key, why.text);
        if (result || !(value >= key->min && value <= key->max))
            return zinf_spec_fail(file, mark_of(item), "%s is out of range: got %s, allowed is "
                                  "%g to %g", key->path, zinf_spec_excerpt(item->text).text,
                                  key->min, key->max);
        if (n < 2)
            *betas[n] = value;
    }
    if (n != 2)
        return zinf_spec_fail(file, mark_of(node), "%s expects a list of two numbers, such as %s; "
                              "got a list of %u", key->path, key->example, n);
    return ZINF_OK;
}

/* A whole number is compared as one: a double rounds what exceeds 2^53. */
static bool is_in_range(const zinf_spec_key *key, uint64_t integer, double real)
{
    switch (key->type) {
    case ZINF_SPEC_INTEGER:
    case ZINF_SPEC_INTEGER32:
    case ZINF_SPEC_BYTES:
        return integer >= (uint64_t)key->min && integer <= (uint64_t)key->max;
    default:
        return real >= key->min && real <= key->max;
    }
}

static zinf_status read_number(const zinf_spec_file *file, const zinf_yaml_node *node,
                               const zinf_spec_key *key)
{
    char *to = file->base + key->offset;
    bool has_unit = key->unit != ZINF_UNIT_NONE;
    zinf_value_result result;
    uint64_t integer = 0;
    double real = 0;
    zinf_why why = {""};

    if (node->kind != ZINF_YAML_SCALAR)
        return fail_type(file, node, key, "");
    if (node->quoted && !has_unit)
        return fail_type(file, node, key, "write it without quotes");
    switch (key->type) {
    case ZINF_SPEC_INTEGER:
    case ZINF_SPEC_INTEGER32:
        result = zinf_value_integer(node->text, &integer, &why);
        break;
    case ZINF_SPEC_BYTES:
        result = zinf_value_bytes(node->text, &integer, &why);
        break;
    case ZINF_SPEC_REAL:
        result = zinf_value_real(node->text, &real, &why);
        break;
    default:
        result = zinf_value_quantity(node->text, key->unit, &real, &why);
    }
    if (result == ZINF_VALUE_BAD)
        return fail_type(file, node, key, why.text);
    if (result || !is_in_range(key, integer, real))
        return fail_range(file, node, key);
    if (key->type == ZINF_SPEC_INTEGER32) {
        uint32_t narrow = (uint32_t)integer; /* the row's max fits */
        memcpy(to, &narrow, sizeof narrow);
    } else if (key->type == ZINF_SPEC_INTEGER || key->type == ZINF_SPEC_BYTES) {
        memcpy(to, &integer, sizeof integer);
    } else {
        memcpy(to, &real, sizeof real);
    }
    return ZINF_OK;
}

static zinf_status read_choice(const zinf_spec_file *file, const zinf_yaml_node *node,
                               const zinf_spec_key *key)
{
    static const struct {
        const char *name;
        zinf_dtype dtype;
    } dtypes[] = {{"bf16", ZINF_BF16}, {"fp16", ZINF_F16}, {"fp32", ZINF_F32}};
    char nearest[16] = "";
    unsigned distance = 3;

    if (node->kind != ZINF_YAML_SCALAR || is_null(node))
        return fail_type(file, node, key, "");
    for (const char *choice = key->choices; *choice;) {
        size_t n = strcspn(choice, "|");
        char word[16];
        snprintf(word, sizeof word, "%.*s", (int)n, choice);
        if (!strcmp(word, node->text)) {
            if (key->type == ZINF_SPEC_CHOICE)
                memcpy(file->base + key->offset, word, strlen(word) + 1);
            for (unsigned i = 0; key->type == ZINF_SPEC_DTYPE && i < 3; i++)
                if (!strcmp(dtypes[i].name, word))
                    memcpy(file->base + key->offset, &dtypes[i].dtype, sizeof(zinf_dtype));
            return ZINF_OK;
        }
        unsigned d = zinf_edit_distance(node->text, word);
        if (d < distance && strlen(node->text) > 1) {
            distance = d;
            memcpy(nearest, word, sizeof nearest);
        }
        choice += n + (choice[n] == '|');
    }
    zinf_excerpt got = zinf_spec_excerpt(node->text);
    return zinf_spec_fail(file, mark_of(node), "%s is %s; allowed is %s%s%s%s", key->path, got.text,
                          key->choices, *nearest ? "; did you mean \"" : "", nearest,
                          *nearest ? "\"?" : "");
}

static zinf_status read_bool(const zinf_spec_file *file, const zinf_yaml_node *node,
                             const zinf_spec_key *key)
{
    bool value;

    if (node->kind != ZINF_YAML_SCALAR)
        return fail_type(file, node, key, "");
    if (node->quoted)
        return fail_type(file, node, key, "write it without quotes");
    if (strcmp(node->text, "true") && strcmp(node->text, "false"))
        return fail_type(file, node, key, "");
    value = node->text[0] == 't';
    memcpy(file->base + key->offset, &value, sizeof value);
    return ZINF_OK;
}

/* Keys are "default" or paths below cluster, of keys or sections; values are text. */
static zinf_status read_source(const zinf_spec_file *file, const zinf_yaml_node *node,
                               const zinf_spec_key *key)
{
    const zinf_yaml_node *nodes = file->tree->nodes;

    if (node->kind != ZINF_YAML_MAPPING)
        return fail_type(file, node, key, "");
    for (uint32_t i = node->child; i != ZINF_NONE; i = nodes[nodes[i].next].next) {
        const char *word = nodes[i].text, *nearest = "default";
        const zinf_yaml_node *value = &nodes[nodes[i].next];
        unsigned distance = zinf_edit_distance(word, nearest);
        bool known = !strcmp(word, "default");
        const zinf_spec_key *row;

        for (unsigned k = 0; !known && (row = zinf_spec_key_at(k)); k++) {
            if (strncmp(row->path, "cluster.", 8) || row->type == ZINF_SPEC_SOURCE)
                continue;
            known = !strcmp(row->path + 8, word);
            unsigned d = zinf_edit_distance(word, row->path + 8);
            if (d < distance) {
                distance = d;
                nearest = row->path + 8;
            }
        }
        if (!known)
            return zinf_spec_fail(file, mark_of(&nodes[i]), "cluster.source names the unknown key "
                                  "%s; did you mean \"%s\"? (a key path such as "
                                  "host.adam, or default)", zinf_spec_excerpt(word).text, nearest);
        for (uint32_t j = node->child; j != i; j = nodes[nodes[j].next].next)
            if (!strcmp(nodes[j].text, word))
                return zinf_spec_fail(file, mark_of(&nodes[i]), "duplicate key \"%s\" in "
                                      "cluster.source, first in line %u", word, nodes[j].line);
        if (value->kind != ZINF_YAML_SCALAR || is_null(value))
            return zinf_spec_fail(file, mark_of(value), "cluster.source expects text for \"%s\", "
                                  "such as data sheet; got %s", word,
                                  value->kind == ZINF_YAML_LIST ? "a list" :
                                  value->kind == ZINF_YAML_MAPPING ? "a mapping" : "nothing");
    }
    return ZINF_OK;
}

/* ---- the walk ---- */

static zinf_status fail_unknown(const zinf_spec_file *file, const zinf_yaml_node *node,
                                const char *section)
{
    const zinf_spec_key *row, *elsewhere = NULL;
    const char *nearest = "";
    unsigned distance = UINT32_MAX;
    char known[400] = "";
    size_t n = 0;

    for (unsigned i = 0; (row = zinf_spec_key_at(i)); i++) {
        const char *word = zinf_spec_key_word(row->path);
        bool in_cluster = !strncmp(row->path, "cluster", 7);
        if (!zinf_spec_key_in(row->path, section, file->is_cluster)) {
            if (!strcmp(word, node->text) && (!elsewhere || in_cluster == file->is_cluster))
                elsewhere = row;
            continue;
        }
        unsigned d = zinf_edit_distance(node->text, word);
        if (d < distance) {
            distance = d;
            nearest = word;
        }
        if (n < sizeof known)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", word);
    }
    zinf_excerpt got = zinf_spec_excerpt(node->text);
    const char *where = *section ? section : "the file";
    if (elsewhere && distance > 1) {
        bool in_cluster = !strncmp(elsewhere->path, "cluster", 7);
        if (in_cluster != file->is_cluster)
            return zinf_spec_fail(file, mark_of(node), "unknown key %s in %s: %s belongs in the "
                                  "%s file, and this is the %s file (known here: %s)", got.text,
                                  where, elsewhere->path, in_cluster ? "cluster" : "model",
                                  in_cluster ? "model" : "cluster", known);
        return zinf_spec_fail(file, mark_of(node), "unknown key %s in %s; did you mean \"%s\"? "
                              "(known in %s: %s)", got.text, where, elsewhere->path, where, known);
    }
    if (distance > 2 && 2 * distance > strlen(node->text)) /* nothing is near */
        return zinf_spec_fail(file, mark_of(node), "unknown key %s in %s (known: %s)", got.text,
                              where, known);
    return zinf_spec_fail(file, mark_of(node), "unknown key %s in %s; did you mean \"%s\"? "
                          "(known: %s)", got.text, where, nearest, known);
}

static zinf_status read_value(zinf_spec_file *file, const zinf_yaml_node *node,
                              const zinf_spec_key *key);

static zinf_status read_section(zinf_spec_file *file, const zinf_yaml_node *node,
                                const char *section)
{
    const zinf_yaml_node *nodes = file->tree->nodes;
    zinf_status status = ZINF_OK;
    char path[MAX_PATH];

    for (uint32_t i = node->child; !status && i != ZINF_NONE; i = nodes[nodes[i].next].next) {
        const zinf_yaml_node *key = &nodes[i];
        int n = snprintf(path, sizeof path, "%s%s%s", section, *section ? "." : "", key->text);
        uint32_t index = n < MAX_PATH ? zinf_spec_key_find(path) : ZINF_NONE;

        if (index == ZINF_NONE ||
            !zinf_spec_key_in(zinf_spec_key_at(index)->path, section, file->is_cluster))
            return fail_unknown(file, key, section);
        if (file->key[index].line)
            return zinf_spec_fail(file, mark_of(key), "duplicate key \"%s\", first in line %u",
                                  path, file->key[index].line);
        file->key[index] = mark_of(key);
        file->value[index] = mark_of(&nodes[key->next]);
        status = read_value(file, &nodes[key->next], zinf_spec_key_at(index));
    }
    return status;
}

static zinf_status read_value(zinf_spec_file *file, const zinf_yaml_node *node,
                              const zinf_spec_key *key)
{
    switch (key->type) {
    case ZINF_SPEC_SECTION:
        if (node->kind != ZINF_YAML_MAPPING)
            return fail_type(file, node, key, "");
        return read_section(file, node, key->path);
    case ZINF_SPEC_SOURCE:
        return read_source(file, node, key);
    case ZINF_SPEC_BOOL:
        return read_bool(file, node, key);
    case ZINF_SPEC_CHOICE:
    case ZINF_SPEC_DTYPE:
        return read_choice(file, node, key);
    case ZINF_SPEC_STRING:
        return read_string(file, node, key, file->base + key->offset);
    case ZINF_SPEC_PATHS:
        return read_paths(file, node, key);
    case ZINF_SPEC_BETAS:
        return read_betas(file, node, key);
    default:
        return read_number(file, node, key);
    }
}

/* The text of the table in place of a key that the file leaves out. */
static zinf_status fill_default(zinf_spec_file *file, const zinf_spec_key *key)
{
    zinf_yaml_node node = {.kind = ZINF_YAML_SCALAR, .child = ZINF_NONE, .next = ZINF_NONE,
                           .text = key->fallback};

    if (key->type == ZINF_SPEC_BETAS) {
        zinf_model *model = (zinf_model *)(void *)file->base;
        model->beta1 = 0.9; /* the row's text */
        model->beta2 = 0.95;
        return ZINF_OK;
    }
    return read_value(file, &node, key);
}

/* Every row of this file that the file did not give: default, nothing, or an error. */
static zinf_status fill_missing(zinf_spec_file *file)
{
    const zinf_spec_key *key;
    zinf_status status = ZINF_OK;

    for (unsigned i = 0; !status && (key = zinf_spec_key_at(i)); i++) {
        char section[MAX_PATH];
        bool in_cluster = !strncmp(key->path, "cluster", 7);
        if (in_cluster != file->is_cluster || file->key[i].line)
            continue;
        snprintf(section, sizeof section, "%s", key->path);
        char *dot = strrchr(section, '.');
        if (dot)
            *dot = 0;
        bool has_section = dot && zinf_spec_given(file, section);
        if (!key->fallback) {
            if (dot && !has_section)
                continue; /* its section is missing: optional, or reported by itself */
            zinf_spec_mark mark = dot ? zinf_spec_at(file, key->path) : (zinf_spec_mark){1, 1};
            if (!dot)
                return zinf_spec_fail(file, mark, "the section \"%s\" (%s) is missing", key->path,
                                      key->help);
            return zinf_spec_fail(file, mark, "the section \"%s\" (line %u) lacks the required "
                                  "key \"%s\" (%s), such as \"%s: %s\"", section, mark.line,
                                  dot + 1, key->help, dot + 1, key->example);
        }
        /* Defaults of a machine's optional parts only where the part is there. */
        if (*key->fallback == '-' || *key->fallback == '=' || (in_cluster && !has_section))
            continue;
        status = fill_default(file, key);
    }
    return status;
}

/* ---- --set ---- */

bool zinf_override_is(const char *assignment)
{
    return !strncmp(assignment, "training.", 9) || !strncmp(assignment, "model.", 6);
}

/* The value is read as if it stood in the file, and in place of what does. */
static zinf_status override(zinf_spec_file *file, const char *assignment)
{
    const char *equals = strchr(assignment, '=');
    const size_t n = equals ? (size_t)(equals - assignment) : 0;
    zinf_yaml_tree tree = {0};
    char path[MAX_PATH], *text;

    if (!n || n >= sizeof path)
        return zinf_fail(file->err, ZINF_BAD_INPUT, "--set %s: expected KEY=VALUE, such as "
                         "training.sequence=128", zinf_spec_excerpt(assignment).text);
    memcpy(path, assignment, n);
    path[n] = 0;
    const uint32_t index = zinf_spec_key_find(path);
    const zinf_spec_key *key = index == ZINF_NONE ? NULL : zinf_spec_key_at(index);
    if (!key || key->type == ZINF_SPEC_SECTION) {
        const char *nearest = "training.sequence";
        const zinf_spec_key *row;
        for (unsigned i = 0; (row = zinf_spec_key_at(i)); i++)
            if (!strncmp(row->path, "training.", 9) && row->type != ZINF_SPEC_SECTION &&
                zinf_edit_distance(path, row->path) < zinf_edit_distance(path, nearest))
                nearest = row->path;
        return zinf_fail(file->err, ZINF_BAD_INPUT, "--set: unknown key %s; did you mean \"%s\"? "
                         "(zinf-plan --help lists all)", zinf_spec_excerpt(path).text, nearest);
    }
    if (strncmp(path, "training.", 9) && strcmp(path, "model.name"))
        return zinf_fail(file->err, ZINF_BAD_INPUT, "--set %s: of the model only the name can be "
                         "set here, its shape is the file's; change \"%.200s\"", path, file->name);
    if (asprintf(&text, "v: %s\n", equals + 1) < 0)
        return zinf_fail(file->err, ZINF_MACHINE, "out of memory for --set");
    zinf_spec_file one = {.name = "--set", .tree = &tree, .plain = true, .base = file->base,
                          .err = file->err};
    zinf_status status = zinf_yaml_parse("--set", text, strlen(text), "a value", &tree, file->err);
    if (!status) {
        const zinf_yaml_node *name = &tree.nodes[tree.nodes[0].child];
        const zinf_yaml_node *value = &tree.nodes[name->next];
        status = value->next != ZINF_NONE
            ? zinf_fail(file->err, ZINF_BAD_INPUT, "--set %s: more than one value", path)
            : read_value(&one, value, key);
    }
    zinf_yaml_free(&tree);
    free(text);
    file->key[index] = file->value[index] = (zinf_spec_mark){ZINF_SPEC_SET, 1};
    return status;
}

static zinf_status parse(const char *name, const char *text, size_t n, bool is_cluster, bool plain,
                         const zinf_overrides *overrides, void *base, zinf_error *err)
{
    zinf_yaml_tree tree = {0};
    zinf_spec_file file = {.name = name, .tree = &tree, .is_cluster = is_cluster, .plain = plain,
                           .base = base, .err = err};
    zinf_status status;

    status = zinf_yaml_parse(name, text, n, is_cluster ? "a mapping with the section \"cluster\"" :
                             "a mapping with the sections \"model\" and \"training\"", &tree, err);
    if (!status)
        status = read_section(&file, tree.nodes, "");
    for (size_t i = 0; !status && overrides && i < overrides->n; i++)
        status = override(&file, overrides->assignments[i]);
    if (!status)
        status = fill_missing(&file);
    if (!status)
        status = is_cluster ? zinf_spec_finish_cluster(&file, base) :
            zinf_spec_finish_model(&file, base);
    zinf_yaml_free(&tree);
    return status;
}

static zinf_status parse_model(const char *name, const char *text, size_t n, bool plain,
                               const zinf_overrides *overrides, zinf_model *ret_model,
                               zinf_error *err)
{
    zinf_model model = {0};
    zinf_status status = parse(name, text, n, false, plain, overrides, &model, err);

    if (!status)
        *ret_model = model;
    return status;
}

zinf_status zinf_model_parse(const char *name, const char *text, size_t n,
                             const zinf_overrides *overrides, zinf_model *ret_model,
                             zinf_error *err)
{
    return parse_model(name, text, n, false, overrides, ret_model, err);
}

zinf_status zinf_cluster_parse(const char *name, const char *text, size_t n,
                               zinf_cluster *ret_cluster, zinf_error *err)
{
    zinf_cluster cluster = {0};
    zinf_status status = parse(name, text, n, true, false, NULL, &cluster, err);

    if (!status)
        *ret_cluster = cluster;
    return status;
}

/* A config.json as the model file it stands for, so that ranges, rules and defaults are those of
 * every other model. */
static zinf_status read_config(const char *path, const zinf_overrides *overrides,
                               zinf_model *ret_model, char *ret_notes, zinf_error *err)
{
    zinf_hf_config config;
    char text[1600], rotary[700] = "";

    if (zinf_hf_config_read(path, &config, err))
        return err->status;
    const zinf_model_info *m = &config.model;
    if (m->rope_theta > 0) {
        const int n = snprintf(rotary, sizeof rotary, ", norm_eps: %.17g, rope_theta: %.17g, "
                               "qkv_bias: %s", m->norm_eps, m->rope_theta,
                               m->qkv_bias ? "true" : "false");
        if (m->rope_factor > 0)
            snprintf(rotary + n, sizeof rotary - (size_t)n, ", rope_scaling: {type: llama3, "
                     "factor: %.17g, low_freq_factor: %.17g, high_freq_factor: %.17g, "
                     "original_context: %" PRIu64 "}", m->rope_factor, m->rope_low_freq_factor,
                     m->rope_high_freq_factor, m->rope_original_context);
    }
    char longest[40] = "";
    if (config.window && config.window < m->context)
        snprintf(longest, sizeof longest, "sequence: %" PRIu64, config.window);
    char name[2 * ZINF_NAME_BYTES]; /* in single quotes, where a quote is written twice */
    size_t n_name = 0;
    for (const char *c = m->name; *c; c++) {
        if (*c == '\'')
            name[n_name++] = '\'';
        name[n_name++] = *c;
    }
    name[n_name] = 0;
    const int n = snprintf(
        text, sizeof text, "model: {name: '%s', family: %s, layers: %" PRIu64 ", hidden: %" PRIu64
        ", heads: %" PRIu64 ", kv_heads: %" PRIu64 ", head_dim: %" PRIu64 ", ffn: %" PRIu64
        ", vocab: %" PRIu64 ", context: %" PRIu64 ", tied_embeddings: %s%s}\n"
        "training: {%s}\n",
        name, m->family, m->layers, m->hidden, m->heads, m->kv_heads, m->head_dim, m->ffn,
        m->vocab, m->context, m->tied_embeddings ? "true" : "false", rotary, longest);
    if (ret_notes)
        snprintf(ret_notes, ZINF_NOTES_BYTES, "%s", config.notes);
    if (parse_model(path, text, (size_t)n, true, overrides, ret_model, err))
        return err->status;
    if (config.window && ret_model->sequence > config.window)
        return zinf_fail(err, ZINF_BAD_INPUT, "\"%.300s\": training.sequence (%" PRIu64 ") exceeds "
                         "its \"sliding_window\" (%" PRIu64 "): attention to a window is not "
                         "supported, and full only up to that; shorten the sequences", path,
                         ret_model->sequence, config.window);
    if (config.window && ret_model->context > config.window)
        ret_model->context = config.window; /* it is full attention no further */
    return ZINF_OK;
}

zinf_status zinf_model_read(const char *path, const zinf_overrides *overrides,
                            zinf_model *ret_model, char ret_notes[ZINF_NOTES_BYTES],
                            zinf_error *err)
{
    char *text = NULL;
    size_t n = 0;

    if (ret_notes)
        *ret_notes = 0;
    if (zinf_hf_config_is(path))
        return read_config(path, overrides, ret_model, ret_notes, err);
    zinf_status status = zinf_spec_read_file(path, &text, &n, err);

    if (!status)
        status = zinf_model_parse(path, text, n, overrides, ret_model, err);
    free(text);
    return status;
}

zinf_status zinf_cluster_read(const char *path, zinf_cluster *ret_cluster, zinf_error *err)
{
    char *text = NULL;
    size_t n = 0;
    zinf_status status = zinf_spec_read_file(path, &text, &n, err);

    if (!status)
        status = zinf_cluster_parse(path, text, n, ret_cluster, err);
    free(text);
    return status;
}
