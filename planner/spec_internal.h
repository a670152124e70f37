/* planner/spec_internal.h - what the files behind spec.h share, and what its tests walk over:
 * the YAML tree (spec_yaml.c), values with units (spec_value.c), the table of keys
 * (spec_keys.c), defaults and rules between keys (spec_check.c).
 */
#ifndef ZINF_PLANNER_SPEC_INTERNAL_H
#define ZINF_PLANNER_SPEC_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "planner/spec.h"
#include "runtime/error.h"

/* ---- spec_yaml.c: text to a tree ---- */

enum {
    ZINF_YAML_MAX_BYTES = 1 << 20, ZINF_YAML_MAX_DEPTH = 16, ZINF_YAML_MAX_NODES = 4096
};

typedef enum zinf_yaml_kind { ZINF_YAML_SCALAR, ZINF_YAML_LIST, ZINF_YAML_MAPPING } zinf_yaml_kind;

/* In a mapping keys are the children, each followed by its value. Line and column start at 1. */
typedef struct zinf_yaml_node {
    zinf_yaml_kind kind;
    bool quoted;              /* a scalar written in quotes or as a block: never a number */
    uint32_t line, column;
    uint32_t child, next;     /* index of a node; ZINF_NONE: none */
    const char *text;         /* scalar, NUL-terminated; owned by the tree */
} zinf_yaml_node;

typedef struct zinf_yaml_tree {
    zinf_yaml_node *nodes; /* [0] is the root, a mapping */
    uint32_t n_nodes;
    char *strings;
} zinf_yaml_tree;

/* `expected` says what the file holds, for the message when it is empty or no mapping. The tree
 * is set only on success; free it with zinf_yaml_free, which accepts a zeroed one. */
zinf_status zinf_yaml_parse(const char *name, const char *text, size_t n, const char *expected,
                            zinf_yaml_tree *ret_tree, zinf_error *err);
void zinf_yaml_free(zinf_yaml_tree *tree);

/* Reads at most ZINF_YAML_MAX_BYTES; *ret_text is malloc'ed. */
zinf_status zinf_spec_read_file(const char *path, char **ret_text, size_t *ret_n,
                                zinf_error *err);

/* ---- spec_value.c: text to numbers ---- */

typedef enum zinf_spec_unit {
    ZINF_UNIT_NONE, ZINF_UNIT_BYTES, ZINF_UNIT_BYTES_PER_S, ZINF_UNIT_FLOP_PER_S,
    ZINF_UNIT_PARAMS_PER_S, ZINF_UNIT_SECONDS, ZINF_N_UNITS
} zinf_spec_unit;

typedef enum zinf_value_result {
    ZINF_VALUE_OK,
    ZINF_VALUE_BAD,      /* not of the type; ret_why says why ("" if there is nothing to add) */
    ZINF_VALUE_NEGATIVE, /* a number of the type, below or above what the type can hold */
    ZINF_VALUE_TOO_LARGE
} zinf_value_result;

typedef struct zinf_why {
    char text[240];
} zinf_why;

zinf_value_result zinf_value_integer(const char *text, uint64_t *ret_value, zinf_why *ret_why);
zinf_value_result zinf_value_real(const char *text, double *ret_value, zinf_why *ret_why);
/* A size: exact, rounded down to whole bytes. A bare integer is in bytes. */
zinf_value_result zinf_value_bytes(const char *text, uint64_t *ret_bytes, zinf_why *ret_why);
/* Any other class; the unit must be written. In the base unit of the class. */
zinf_value_result zinf_value_quantity(const char *text, zinf_spec_unit unit, double *ret_value,
                                      zinf_why *ret_why);

/* "1 MiB", "1 TFLOP/s", "1e+06": into buf, which is returned. */
const char *zinf_value_format(double value, zinf_spec_unit unit, char *buf, size_t n_buf);

/* Insertions, deletions, substitutions and swaps of neighbours. Beyond 63 bytes nothing counts. */
unsigned zinf_edit_distance(const char *a, const char *b);

/* ---- spec_keys.c: the table ---- */

typedef enum zinf_spec_type {
    ZINF_SPEC_SECTION,  /* a mapping whose keys are rows of the table */
    ZINF_SPEC_SOURCE,   /* a mapping from key paths to where their values come from */
    ZINF_SPEC_INTEGER,  /* uint64_t */
    ZINF_SPEC_INTEGER32, /* uint32_t */
    ZINF_SPEC_REAL,     /* double, without unit */
    ZINF_SPEC_BYTES,    /* uint64_t */
    ZINF_SPEC_QUANTITY, /* double, in the row's unit */
    ZINF_SPEC_BOOL,
    ZINF_SPEC_CHOICE,   /* char[16]; the choices separated by '|' */
    ZINF_SPEC_DTYPE,    /* zinf_dtype; the choices separated by '|' */
    ZINF_SPEC_STRING,   /* char[ZINF_NAME_BYTES] */
    ZINF_SPEC_PATHS,    /* char[ZINF_MAX_PATHS][ZINF_PATH_BYTES], at most that many */
    ZINF_SPEC_BETAS     /* two doubles in [0, 1) */
} zinf_spec_type;

/* `fallback`: NULL: the key is required where its section is given; "-": may be left out;
 * "= ...": derived (spec_check.c); else the text that is parsed in its place. */
typedef struct zinf_spec_key {
    const char *path;
    zinf_spec_type type;
    zinf_spec_unit unit;
    size_t offset; /* in zinf_model (paths model.*, training.*) or zinf_cluster */
    double min, max;
    const char *fallback, *example, *choices, *help;
} zinf_spec_key;

/* The table in the order in which it is printed; NULL beyond its end. */
const zinf_spec_key *zinf_spec_key_at(unsigned index);
/* Index of a path, or ZINF_NONE. */
uint32_t zinf_spec_key_find(const char *path);
/* Is `path` directly in `section` ("" for the root of the model's or the cluster's file)? */
bool zinf_spec_key_in(const char *path, const char *section, bool in_cluster);
/* The last word of a path. */
const char *zinf_spec_key_word(const char *path);

enum { ZINF_SPEC_MAX_KEYS = 128 };

/* ---- spec.c, spec_check.c ---- */

typedef struct zinf_spec_mark {
    uint32_t line, column; /* line 0: the key is not in the file */
} zinf_spec_mark;

typedef struct zinf_spec_file {
    const char *name; /* for errors */
    const zinf_yaml_tree *tree;
    bool is_cluster;
    bool plain; /* the text is not the user's: errors have no position */
    char *base; /* the structure that is filled */
    zinf_spec_mark value[ZINF_SPEC_MAX_KEYS]; /* where the value of a key stands */
    zinf_spec_mark key[ZINF_SPEC_MAX_KEYS];   /* where the key stands */
    zinf_error *err;
} zinf_spec_file;

/* The line of a value that --set gave. */
#define ZINF_SPEC_SET UINT32_MAX

/* "name:line:column: " and the message; BAD_INPUT. */
__attribute__((format(printf, 3, 4)))
zinf_status zinf_spec_fail(const zinf_spec_file *file, zinf_spec_mark mark, const char *format,
                           ...);

/* The value of `path` in the file; if it is not there, its innermost section that is. */
zinf_spec_mark zinf_spec_at(const zinf_spec_file *file, const char *path);
bool zinf_spec_given(const zinf_spec_file *file, const char *path);

/* Defaults that depend on other keys, then the rules between keys. */
zinf_status zinf_spec_finish_model(const zinf_spec_file *file, zinf_model *model);
zinf_status zinf_spec_finish_cluster(const zinf_spec_file *file, zinf_cluster *cluster);

/* A printable excerpt of what the user wrote, in double quotes, at most 48 characters of it. */
typedef struct zinf_excerpt {
    char text[64];
} zinf_excerpt;
zinf_excerpt zinf_spec_excerpt(const char *text);

#endif
