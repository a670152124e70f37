/* runtime/json.c - see json.h. json-c, even when told to be strict, takes strings in single quotes
 * or of several lines and NaN, which are looked for first; and it keeps the last of two equal keys
 * and tells nobody, so the keys are counted again: a colon outside of strings stands behind each.
 */
#include "runtime/json.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = 32 };

zinf_shown zinf_show(const char *text)
{
    zinf_shown shown = {""};
    size_t n = 0;

    for (; text[n] && n + 4 < sizeof shown.text; n++)
        shown.text[n] = text[n] < ' ' || text[n] > '~' ? '?' : text[n];
    memcpy(shown.text + n, text[n] ? "..." : "", text[n] ? 4 : 1);
    return shown;
}

zinf_shown zinf_json_show(json_object *value)
{
    /* what exceeds 64 bits is held as the largest number, or the least */
    if (json_object_is_type(value, json_type_int) && json_object_get_uint64(value) == UINT64_MAX)
        return zinf_show("18446744073709551615 or more");
    if (json_object_is_type(value, json_type_int) && json_object_get_int64(value) == INT64_MIN)
        return zinf_show("-9223372036854775808 or less");
    return zinf_show(json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN |
                                                               JSON_C_TO_STRING_NOSLASHESCAPE));
}

/* Index of the first byte that no JSON has there, or of an escaped NUL, where json-c's names end; n
 * if there is none. Strings end before n then. */
static size_t find_stray(const char *text, size_t n)
{
    bool quoted = false;

    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (quoted && n - i >= 6 && !memcmp(text + i, "\\u0000", 6))
            return i;
        if (quoted ? c < ' ' : !c || !strchr("{}[]:,\"0123456789+-.eEtrufalsn \t\r\n", c))
            return i;
        if (quoted && c == '\\' && i + 1 < n && (unsigned char)text[i + 1] >= ' ')
            i++;
        else
            quoted ^= c == '"';
    }
    return n;
}

/* Behind the string whose opening quote is at `at`; the text is valid JSON. */
static size_t skip_string(const char *text, size_t at)
{
    for (at++; text[at] != '"'; at++)
        at += text[at] == '\\';
    return at + 1;
}

static size_t count_written(const char *text, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n;) {
        count += text[i] == ':';
        i = text[i] == '"' ? skip_string(text, i) : i + 1;
    }
    return count;
}

static size_t count_kept(json_object *value) /* as deep as the parser allowed */
{
    size_t count = 0;

    if (json_object_is_type(value, json_type_object)) {
        json_object_object_foreach(value, key, member) {
            (void)key;
            count += 1 + count_kept(member);
        }
    } else if (json_object_is_type(value, json_type_array)) {
        for (size_t i = 0; i < json_object_array_length(value); i++)
            count += count_kept(json_object_array_get_idx(value, i));
    }
    return count;
}

/* The first key that its object has already, as written; false if escapes hide it: the two are
 * spelled differently then, and the caller says so instead of naming one. */
static bool find_twice(const char *text, size_t n, zinf_shown *ret_key)
{
    json_object *keys[MOST_DEPTH + 1] = {NULL};
    bool found = false;
    int depth = 0;

    for (size_t i = 0; i < n && !found;) {
        if (text[i] == '{' && depth < MOST_DEPTH)
            keys[depth++] = json_object_new_object();
        else if (text[i] == '}' && depth > 0)
            json_object_put(keys[--depth]);
        if (text[i] != '"') {
            i++;
            continue;
        }
        const size_t end = skip_string(text, i);
        if (text[end + strspn(text + end, " \t\r\n")] == ':' && depth > 0) {
            char *key = strndup(text + i + 1, end - i - 2);
            found = key && keys[depth - 1] &&
                    json_object_object_get_ex(keys[depth - 1], key, NULL);
            if (found)
                *ret_key = zinf_show(key);
            else if (key && keys[depth - 1])
                json_object_object_add(keys[depth - 1], key, NULL);
            free(key);
        }
        i = end;
    }
    while (depth > 0)
        json_object_put(keys[--depth]);
    return found;
}

zinf_status zinf_json_parse(const char *what, const char *text, size_t n, int depth,
                            json_object **ret_object, zinf_error *err)
{
    json_tokener *tokener = json_tokener_new_ex(depth < MOST_DEPTH ? depth : MOST_DEPTH);
    zinf_shown key = {"(written with escapes)"};

    if (!tokener || n >= INT_MAX) {
        if (tokener)
            json_tokener_free(tokener);
        return zinf_fail(err, tokener ? ZINF_BAD_INPUT : ZINF_MACHINE, "%s: %s", what,
                         tokener ? "a JSON text of 2 GiB or more" : "out of memory");
    }
    const size_t stray = find_stray(text, n);
    if (stray < n) {
        json_tokener_free(tokener);
        if (!stray && n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3))
            return zinf_fail(err, ZINF_BAD_INPUT, "%s begins with a byte order mark (EF BB BF), "
                             "which no JSON has; save it as UTF-8 without one", what);
        if (text[stray] == '\\')
            return zinf_fail(err, ZINF_BAD_INPUT, "%s has a NUL in a string (\\u0000 at byte %zu), "
                             "which no name has", what, stray);
        return zinf_fail(err, ZINF_BAD_INPUT, "%s is not well-formed JSON: byte %zu is 0x%02x, "
                         "which has no place there", what, stray, (unsigned char)text[stray]);
    }
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    errno = 0; /* json-c says of a failed allocation that the text is bad */
    json_object *object = json_tokener_parse_ex(tokener, text, (int)n);
    const enum json_tokener_error error = json_tokener_get_error(tokener);
    const size_t end = json_tokener_get_parse_end(tokener);
    const bool no_memory = errno == ENOMEM;
    json_tokener_free(tokener);

    if (no_memory) {
        json_object_put(object);
        return zinf_fail(err, ZINF_MACHINE, "%s: out of memory", what);
    }
    const bool all = object && end + strspn(text + end, " \t\r\n") == n;
    if (error != json_tokener_success || !all || !json_object_is_type(object, json_type_object)) {
        json_object_put(object);
        return zinf_fail(err, ZINF_BAD_INPUT, "%s is not well-formed JSON: %s near byte %zu", what,
                         error == json_tokener_success    ? "something follows or it is no object"
                         : error == json_tokener_continue ? "it ends early"
                                                          : json_tokener_error_desc(error), end);
    }
    if (count_written(text, n) != count_kept(object)) {
        find_twice(text, n, &key);
        json_object_put(object);
        return zinf_fail(err, ZINF_BAD_INPUT, "%s has the key \"%s\" twice in one object", what,
                         key.text);
    }
    *ret_object = object;
    return ZINF_OK;
}
