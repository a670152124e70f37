/* runtime/error.c - see error.h. */
#include "runtime/error.h"

#include <stdarg.h>
#include <stdio.h>

void zinf_plain_text(char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
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
