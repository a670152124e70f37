/* runtime/json.h - what the readers of JSON share: one strict parse of a whole text. Numbers, names
 * and structure are the callers'.
 */
#ifndef ZINF_RUNTIME_JSON_H
#define ZINF_RUNTIME_JSON_H

#include <json-c/json.h>
#include <stddef.h>

#include "runtime/error.h"

/* All of text[0 .. n) must be one object, nested at most `depth` (of 32) deep, in UTF-8, without
 * a key twice in one object. `what` begins the sentence of an error ("\"config.json\""). Takes
 * about 20 times the text's length in memory. Free with json_object_put. */
zinf_status zinf_json_parse(const char *what, const char *text, size_t n, int depth,
                            json_object **ret_object, zinf_error *err);

/* What a file wrote, for a message: at most 60 characters, what is not printable as '?'. */
typedef struct zinf_shown {
    char text[64];
} zinf_shown;
zinf_shown zinf_show(const char *text);
zinf_shown zinf_json_show(json_object *value); /* NULL is the JSON null */

#endif
