/* planner/spec_yaml.c - YAML text to a small tree with positions, within stated limits.
 *
 * libyaml's events, not its document API: nothing is built that the limits do not allow, and
 * anchors, aliases, tags and further documents are refused where they stand.
 */
#include "planner/spec_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

typedef struct builder {
    const char *name, *text;
    size_t n;
    zinf_yaml_tree tree;
    size_t n_strings, strings_capacity;
    uint32_t open[ZINF_YAML_MAX_DEPTH]; /* mappings and lists being read, outermost first */
    uint32_t last[ZINF_YAML_MAX_DEPTH]; /* the last child of each, or ZINF_NONE */
    uint32_t n_children[ZINF_YAML_MAX_DEPTH];
    unsigned depth;
    zinf_error *err;
} builder;

__attribute__((format(printf, 4, 5)))
static zinf_status fail(builder *b, size_t line, size_t column, const char *format, ...)
{
    zinf_spec_file file = {.name = b->name, .err = b->err};
    char message[600];
    va_list args;

    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return zinf_spec_fail(&file, (zinf_spec_mark){(uint32_t)line + 1, (uint32_t)column + 1}, "%s",
                          message);
}

/* Line and column (from 0) of a byte of the text. */
static yaml_mark_t mark_of_byte(const builder *b, size_t at)
{
    yaml_mark_t mark = {.index = at};

    for (size_t i = 0; i < at && i < b->n; i++) {
        if (b->text[i] == '\n') {
            mark.line++;
            mark.column = 0;
        } else if ((b->text[i] & 0xC0) != 0x80) { /* a character, not a UTF-8 continuation */
            mark.column++;
        }
    }
    return mark;
}

static zinf_status fail_parser(builder *b, const yaml_parser_t *parser)
{
    yaml_mark_t mark = parser->problem_mark;
    const char *problem = parser->problem ? parser->problem : "unknown problem";

    if (parser->error == YAML_MEMORY_ERROR)
        return zinf_fail(b->err, ZINF_MACHINE, "%s: out of memory while reading YAML", b->name);
    if (parser->error == YAML_READER_ERROR)
        mark = mark_of_byte(b, parser->problem_offset);
    if (parser->context)
        return fail(b, mark.line, mark.column, "not valid YAML: %s (%s, which begins in line %zu)",
                    problem, parser->context, parser->context_mark.line + 1);
    return fail(b, mark.line, mark.column, "not valid YAML: %s%s", problem,
                strstr(problem, "cannot start any token") ? " (tabs cannot indent)" : "");
}

/* Appends a node to the innermost open mapping or list. */
static zinf_status add(builder *b, const yaml_event_t *event, zinf_yaml_kind kind,
                       const yaml_char_t *anchor, const yaml_char_t *tag, uint32_t *ret_node)
{
    size_t line = event->start_mark.line, column = event->start_mark.column;
    unsigned top = b->depth - 1;

    if (anchor)
        return fail(b, line, column, "anchors (&%.40s) are not supported; write the value out",
                    (const char *)anchor);
    if (tag)
        return fail(b, line, column, "tags (%s) are not supported; write the plain value",
                    zinf_spec_excerpt((const char *)tag).text);
    if (b->tree.n_nodes == ZINF_YAML_MAX_NODES)
        return fail(b, line, column, "more than %d values; a specification has fewer than 100",
                    ZINF_YAML_MAX_NODES);
    uint32_t index = b->tree.n_nodes++;
    b->tree.nodes[index] = (zinf_yaml_node){
        .kind = kind, .line = (uint32_t)line + 1, .column = (uint32_t)column + 1,
        .child = ZINF_NONE, .next = ZINF_NONE, .text = "",
    };
    if (b->depth) {
        zinf_yaml_node *parent = &b->tree.nodes[b->open[top]];
        if (parent->kind == ZINF_YAML_MAPPING && b->n_children[top] % 2 == 0 &&
            kind != ZINF_YAML_SCALAR)
            return fail(b, line, column, "a key must be a word, not a list or a mapping");
        if (b->last[top] == ZINF_NONE)
            parent->child = index;
        else
            b->tree.nodes[b->last[top]].next = index;
        b->last[top] = index;
        b->n_children[top]++;
    }
    *ret_node = index;
    return ZINF_OK;
}

static zinf_status add_scalar(builder *b, const yaml_event_t *event)
{
    uint32_t index;
    size_t n = event->data.scalar.length;
    zinf_status status = add(b, event, ZINF_YAML_SCALAR, event->data.scalar.anchor,
                             event->data.scalar.tag, &index);

    if (status)
        return status;
    if (memchr(event->data.scalar.value, 0, n))
        return fail(b, event->start_mark.line, event->start_mark.column,
                    "a NUL character in a value");
    if (n >= b->strings_capacity - b->n_strings)
        return fail(b, event->start_mark.line, event->start_mark.column, "values too long");
    memcpy(b->tree.strings + b->n_strings, event->data.scalar.value, n);
    b->tree.nodes[index].text = b->tree.strings + b->n_strings;
    b->tree.nodes[index].quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    b->n_strings += n;
    b->tree.strings[b->n_strings++] = 0;
    return ZINF_OK;
}

static zinf_status open_collection(builder *b, const yaml_event_t *event, zinf_yaml_kind kind,
                                   const yaml_char_t *anchor, const yaml_char_t *tag)
{
    uint32_t index;

    if (b->depth == ZINF_YAML_MAX_DEPTH)
        return fail(b, event->start_mark.line, event->start_mark.column,
                    "nested more than %d deep; a specification needs 4", ZINF_YAML_MAX_DEPTH);
    zinf_status status = add(b, event, kind, anchor, tag, &index);
    if (status)
        return status;
    b->open[b->depth] = index;
    b->last[b->depth] = ZINF_NONE;
    b->n_children[b->depth++] = 0;
    return ZINF_OK;
}

/* Takes one event; *ret_end at the end of the text. */
static zinf_status take(builder *b, const yaml_event_t *event, bool *ret_end)
{
    *ret_end = false;
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (b->tree.n_nodes)
            return fail(b, event->start_mark.line, event->start_mark.column,
                        "a second YAML document; a file holds one (remove the \"---\")");
        return ZINF_OK;
    case YAML_ALIAS_EVENT:
        return fail(b, event->start_mark.line, event->start_mark.column,
                    "aliases (*%.40s) are not supported; write the value out",
                    (const char *)event->data.alias.anchor);
    case YAML_SCALAR_EVENT:
        return add_scalar(b, event);
    case YAML_SEQUENCE_START_EVENT:
        return open_collection(b, event, ZINF_YAML_LIST, event->data.sequence_start.anchor,
                               event->data.sequence_start.tag);
    case YAML_MAPPING_START_EVENT:
        return open_collection(b, event, ZINF_YAML_MAPPING, event->data.mapping_start.anchor,
                               event->data.mapping_start.tag);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        b->depth--;
        return ZINF_OK;
    case YAML_STREAM_END_EVENT:
        *ret_end = true;
        return ZINF_OK;
    default:
        return ZINF_OK;
    }
}

static zinf_status read_events(builder *b)
{
    yaml_parser_t parser;
    zinf_status status = ZINF_OK;
    bool end = false;

    if (!yaml_parser_initialize(&parser))
        return zinf_fail(b->err, ZINF_MACHINE, "%s: out of memory while reading YAML", b->name);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)b->text, b->n);
    while (!status && !end) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            status = fail_parser(b, &parser);
            break;
        }
        status = take(b, &event, &end);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return status;
}

void zinf_yaml_free(zinf_yaml_tree *tree)
{
    free(tree->nodes);
    free(tree->strings);
    *tree = (zinf_yaml_tree){0};
}

zinf_status zinf_yaml_parse(const char *name, const char *text, size_t n, const char *expected,
                            zinf_yaml_tree *ret_tree, zinf_error *err)
{
    builder b = {.name = name, .text = text, .n = n, .err = err};
    const char *nul = n ? memchr(text, 0, n) : NULL;
    zinf_status status;

    if (n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) { /* a byte order mark, which YAML allows */
        b.text += 3;
        b.n -= 3;
    }
    if (n > ZINF_YAML_MAX_BYTES)
        return fail(&b, 0, 0, "larger than %d MiB: no specification (expected %s)",
                    ZINF_YAML_MAX_BYTES >> 20, expected);
    if (nul) {
        yaml_mark_t mark = mark_of_byte(&b, (size_t)(nul - b.text));
        return fail(&b, mark.line, mark.column, "a NUL byte: this is no text file (expected %s)",
                    expected);
    }
    /* An escape such as "\L" is two bytes and stands for three. */
    b.strings_capacity = 2 * n + ZINF_YAML_MAX_NODES + 1;
    b.tree.nodes = calloc(ZINF_YAML_MAX_NODES, sizeof *b.tree.nodes);
    b.tree.strings = malloc(b.strings_capacity);
    if (!b.tree.nodes || !b.tree.strings) {
        status = zinf_fail(err, ZINF_MACHINE, "%s: out of memory while reading YAML", name);
        goto out;
    }
    status = read_events(&b);
    if (status)
        goto out;
    if (!b.tree.n_nodes)
        status = fail(&b, 0, 0, "the file is empty; expected %s", expected);
    else if (b.tree.nodes[0].kind != ZINF_YAML_MAPPING)
        status = fail(&b, b.tree.nodes[0].line - 1, b.tree.nodes[0].column - 1,
                      "the file is %s, not a mapping; expected %s",
                      b.tree.nodes[0].kind == ZINF_YAML_LIST ? "a list" : "a single value",
                      expected);
out:
    if (status)
        zinf_yaml_free(&b.tree);
    else
        *ret_tree = b.tree;
    return status;
}

zinf_status zinf_spec_read_file(const char *path, char **ret_text, size_t *ret_n, zinf_error *err)
{
    zinf_status status = ZINF_OK;
    size_t n = 0, capacity = ZINF_YAML_MAX_BYTES + 1; /* one more, so that too large shows */
    char *text = NULL;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* no waiting for a pipe's writer */

    if (fd < 0)
        return zinf_fail(err, ZINF_BAD_INPUT, "cannot open \"%.500s\": %s", path,
                         strerror(errno));
    if (fstat(fd, &info) || !S_ISREG(info.st_mode)) {
        status = zinf_fail(err, ZINF_BAD_INPUT, "\"%.500s\" is not a regular file", path);
        goto out;
    }
    text = malloc(capacity);
    if (!text) {
        status = zinf_fail(err, ZINF_MACHINE, "\"%.500s\": out of memory", path);
        goto out;
    }
    while (n < capacity) {
        ssize_t got = read(fd, text + n, capacity - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            status = zinf_fail(err, ZINF_BAD_INPUT, "cannot read \"%.500s\": %s", path,
                               strerror(errno));
            goto out;
        }
        if (!got)
            break;
        n += (size_t)got;
    }
out:
    close(fd);
    if (status) {
        free(text);
        return status;
    }
    *ret_text = text;
    *ret_n = n;
    return ZINF_OK;
}
