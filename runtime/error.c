/* runtime/error.c - see error.h. */
#include "runtime/error.h"

#include <stdarg.h>
#include <stdio.h>

zinf_status zinf_fail(zinf_error *err, zinf_status status, const char *format, ...)
{
    if (err->status != ZINF_OK)
        return err->status;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    for (char *c = err->text; *c; c++) /* of a file's names: no command to a terminal */
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    err->status = status;
    return status;
}
