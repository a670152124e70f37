/* runtime/error.c - see error.h. */
#include "runtime/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

size_t zinf_character(const char *text, size_t n, bool *ret_control)
{
    const unsigned char *c = (const unsigned char *)text;
    size_t length = *c < 0xc2 || *c > 0xf4 ? 1 : *c < 0xe0 ? 2 : *c < 0xf0 ? 3 : 4;

    for (size_t i = 1; i < length; i++)
        if (i >= n || (c[i] & 0xc0) != 0x80)
            length = 1;
    if ((*c == 0xe0 && length > 1 && c[1] < 0xa0) || (*c == 0xf0 && length > 1 && c[1] < 0x90))
        length = 1; /* longer than it need be */
    *ret_control = length == 1 ? *c < ' ' || (*c >= 0x7f && *c < 0xa0)
                               : *c == 0xc2 && c[1] < 0xa0;
    return length;
}

bool zinf_has_control(const char *text, size_t n)
{
    bool control = false;

    for (size_t i = 0; i < n && !control;)
        i += text[i] ? zinf_character(text + i, n - i, &control) : 1;
    return control;
}

void zinf_plain_text(char *text)
{
    size_t left = strlen(text), n;
    char *to = text;
    bool control;

    for (const char *from = text; left; from += n, left -= n) {
        n = zinf_character(from, left, &control);
        if (control)
            *to++ = '?';
        else
            to = (char *)memmove(to, from, n) + n;
    }
    *to = 0;
}

zinf_status zinf_fail(zinf_error *err, zinf_status status, const char *format, ...)
{
    if (err->status != ZINF_OK)
        return err->status;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    zinf_plain_text(err->text);
    err->status = status;
    return status;
}
