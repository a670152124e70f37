/* runtime/error.h - one status and one error record, filled by the first function that knows. */
#ifndef ZINF_RUNTIME_ERROR_H
#define ZINF_RUNTIME_ERROR_H

#include <stdbool.h>
#include <stddef.h>

/* The values are the exit codes of every command. */
typedef enum zinf_status {
    ZINF_OK = 0,
    ZINF_WRONG_RESULT = 1, /* a result is wrong, or our own fault */
    ZINF_BAD_INPUT = 2,    /* the user's input */
    ZINF_DOES_NOT_FIT = 3, /* does not fit, or the plan was refused */
    ZINF_MACHINE = 4       /* device, I/O, network, memory */
} zinf_status;

typedef struct zinf_error {
    zinf_status status; /* ZINF_OK until somebody fails */
    char text[1000];    /* what, where, allowed, what to do; no newline at the end */
} zinf_error;

/* Bytes of the character that begins text[0 .. n), n > 0: 1 to 4 of UTF-8, else 1. Is it a control
 * character (C0, DEL, or C1, also as a byte that is part of no character)? Those command a
 * terminal. */
size_t zinf_character(const char *text, size_t n, bool *ret_control);
/* Is there one in text[0 .. n)? A NUL is none. */
bool zinf_has_control(const char *text, size_t n);
/* A control character becomes '?': what is printed may hold any file's name. */
void zinf_plain_text(char *text);

/* Records the failure unless one is recorded already; returns the status recorded. */
__attribute__((format(printf, 3, 4)))
zinf_status zinf_fail(zinf_error *err, zinf_status status, const char *format, ...);

#endif
