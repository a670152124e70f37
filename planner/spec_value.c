/* planner/spec_value.c - text to numbers with units and back. Knows no keys and no positions. */
#include "planner/spec_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct unit_name {
    const char *name;
    double scale; /* base units in one of it */
} unit_name;

static const double near_whole = 1e-12; /* relative distance that a double's rounding leaves */

static const unit_name byte_units[] = {
    {"B", 1}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"PB", 1e15},
    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"PiB", 0x1p50},
    {0}};
static const unit_name byte_rate_units[] = {
    {"B/s", 1}, {"kB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"TB/s", 1e12}, {"PB/s", 1e15},
    {"KiB/s", 0x1p10}, {"MiB/s", 0x1p20}, {"GiB/s", 0x1p30}, {"TiB/s", 0x1p40}, {0}};
static const unit_name flop_units[] = {
    {"FLOP/s", 1}, {"kFLOP/s", 1e3}, {"MFLOP/s", 1e6}, {"GFLOP/s", 1e9}, {"TFLOP/s", 1e12},
    {"PFLOP/s", 1e15}, {"EFLOP/s", 1e18}, {0}};
static const unit_name param_units[] = {
    {"params/s", 1}, {"Mparams/s", 1e6}, {"Gparams/s", 1e9}, {0}};
static const unit_name second_units[] = {
    {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {0}};

static const unit_name *const units[ZINF_N_UNITS] = {
    [ZINF_UNIT_BYTES] = byte_units,
    [ZINF_UNIT_BYTES_PER_S] = byte_rate_units,
    [ZINF_UNIT_FLOP_PER_S] = flop_units,
    [ZINF_UNIT_PARAMS_PER_S] = param_units,
    [ZINF_UNIT_SECONDS] = second_units,
};

#define WHY(...) (snprintf(ret_why->text, sizeof ret_why->text, __VA_ARGS__), ZINF_VALUE_BAD)

static const char *skip_digits(const char *s)
{
    while (isdigit((unsigned char)*s))
        s++;
    return s;
}

/* The end of the decimal number at the start of text; text itself if there is none. */
static const char *number_end(const char *text)
{
    const char *s = text, *digits;
    unsigned n;

    if (*s == '-' || *s == '+')
        s++;
    digits = s;
    s = skip_digits(s);
    n = (unsigned)(s - digits);
    if (*s == '.') {
        const char *fraction = s + 1;
        s = skip_digits(fraction);
        n += (unsigned)(s - fraction);
    }
    if (!n)
        return text;
    if (*s == 'e' || *s == 'E') {
        const char *exponent = s + 1;
        if (*exponent == '-' || *exponent == '+')
            exponent++;
        if (isdigit((unsigned char)*exponent))
            s = skip_digits(exponent);
    }
    return s;
}

static bool is_integer(const char *text, const char *end)
{
    return text < end && skip_digits(text) == end;
}

static zinf_value_result not_a_number(const char *text, zinf_why *ret_why)
{
    static const char *const words[] = {"nan", "inf", "infinity"};
    const char *s = text;

    if (*s == '-' || *s == '+')
        s++;
    if (*s == '.')
        s++;
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i]);
        if (!strncasecmp(s, words[i], n) && !isalpha((unsigned char)s[n]))
            return WHY("it must be finite");
    }
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
        return WHY("write it in decimal");
    return WHY("%s", "");
}

/* Digits only, [text, end). */
static zinf_value_result read_digits(const char *text, const char *end, uint64_t *ret_value,
                                     zinf_why *ret_why)
{
    uint64_t value = 0;

    if (end - text > 1 && *text == '0')
        return WHY("remove the leading zero (YAML readers disagree on what it means)");
    for (const char *s = text; s < end; s++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*s - '0'), &value))
            return ZINF_VALUE_TOO_LARGE;
    *ret_value = value;
    return ZINF_VALUE_OK;
}

zinf_value_result zinf_value_integer(const char *text, uint64_t *ret_value, zinf_why *ret_why)
{
    const char *end = number_end(text);

    ret_why->text[0] = 0;
    if (end == text)
        return not_a_number(text, ret_why);
    if (*end) {
        zinf_value_result result = not_a_number(text, ret_why);
        return ret_why->text[0] ? result : WHY("nothing may follow the digits");
    }
    if (*text == '-' && is_integer(text + 1, end))
        return ZINF_VALUE_NEGATIVE;
    if (!is_integer(text, end))
        return WHY("write it with digits only");
    return read_digits(text, end, ret_value, ret_why);
}

static zinf_value_result read_real(const char *text, const char *end, double *ret_value,
                                   zinf_why *ret_why)
{
    char buf[80];
    size_t n = (size_t)(end - text);

    if (n >= sizeof buf)
        return WHY("a number of more than %zu characters", sizeof buf - 1);
    memcpy(buf, text, n);
    buf[n] = 0;
    double value = strtod(buf, NULL);
    if (value > 1.7e308)
        return ZINF_VALUE_TOO_LARGE;
    if (value < -1.7e308)
        return ZINF_VALUE_NEGATIVE;
    *ret_value = value;
    return ZINF_VALUE_OK;
}

zinf_value_result zinf_value_real(const char *text, double *ret_value, zinf_why *ret_why)
{
    const char *end = number_end(text);

    ret_why->text[0] = 0;
    if (end == text)
        return not_a_number(text, ret_why);
    if (*end) {
        zinf_value_result result = not_a_number(text, ret_why);
        return ret_why->text[0] ? result : WHY("nothing may follow the number");
    }
    return read_real(text, end, ret_value, ret_why);
}

static void list_units(zinf_spec_unit unit, char *buf, size_t n_buf)
{
    size_t at = 0;

    buf[0] = 0;
    for (const unit_name *u = units[unit]; u->name && at < n_buf; u++)
        at += (size_t)snprintf(buf + at, n_buf - at, "%s%s", u == units[unit] ? "" : ", ", u->name);
}

/* Finds the unit that is the whole of `text` (blanks around it skipped). */
static zinf_value_result read_unit(const char *text, zinf_spec_unit unit, double *ret_scale,
                                   zinf_why *ret_why)
{
    const unit_name *nearest = NULL;
    unsigned distance = 4;
    char list[160];

    while (*text == ' ')
        text++;
    list_units(unit, list, sizeof list);
    if (!*text)
        return WHY("the unit is missing (one of %s)", list);
    for (const unit_name *u = units[unit]; u->name; u++) {
        unsigned d = zinf_edit_distance(text, u->name);
        if (!strcmp(text, u->name)) {
            *ret_scale = u->scale;
            return ZINF_VALUE_OK;
        }
        if (!strcasecmp(text, u->name))
            d = 0;
        if (d < distance && strlen(text) > 1) {
            nearest = u;
            distance = d;
        }
    }
    size_t n = strlen(text);
    if (unit == ZINF_UNIT_BYTES_PER_S && n > 2 && !strcmp(text + n - 3, "b/s"))
        return WHY("\"b\" is a bit: divide by 8 and write B/s, such as 12.5 GB/s for 100 Gb/s");
    zinf_excerpt quoted = zinf_spec_excerpt(text);
    if (nearest && distance < 2)
        return WHY("unknown unit %.30s, did you mean \"%s\"? (%s)", quoted.text, nearest->name,
                   list);
    return WHY("unknown unit %.30s (one of %s)", quoted.text, list);
}

/* Splits "1.5 TiB" and checks both halves; *ret_end is the end of the number. */
static zinf_value_result split(const char *text, zinf_spec_unit unit, const char **ret_end,
                               double *ret_value, double *ret_scale, zinf_why *ret_why)
{
    const char *end = number_end(text);
    zinf_value_result result;

    ret_why->text[0] = 0;
    if (end == text)
        return not_a_number(text, ret_why);
    result = not_a_number(text, ret_why);
    if (ret_why->text[0])
        return result;
    result = read_unit(end, unit, ret_scale, ret_why);
    if (result)
        return result;
    result = read_real(text, end, ret_value, ret_why);
    if (!result && *ret_value < 0)
        return ZINF_VALUE_NEGATIVE;
    *ret_end = end;
    return result;
}

zinf_value_result zinf_value_bytes(const char *text, uint64_t *ret_bytes, zinf_why *ret_why)
{
    const char *end = number_end(text);
    zinf_value_result result;
    double value, scale;
    uint64_t whole;

    ret_why->text[0] = 0;
    if (end != text && !*end) {
        if (is_integer(text, end))
            return read_digits(text, end, ret_bytes, ret_why);
        if (*text == '-' && is_integer(text + 1, end))
            return ZINF_VALUE_NEGATIVE;
    }
    result = split(text, ZINF_UNIT_BYTES, &end, &value, &scale, ret_why);
    if (result)
        return result;
    if (is_integer(text, end)) {
        result = read_digits(text, end, &whole, ret_why);
        if (result)
            return result;
        if (__builtin_mul_overflow(whole, (uint64_t)scale, ret_bytes))
            return ZINF_VALUE_TOO_LARGE;
        return ZINF_VALUE_OK;
    }
    /* A decimal fraction is rarely a double: the next one up still rounds down to its bytes. */
    double bytes = value * scale;
    if (bytes < 0x1p52)
        bytes = nextafter(bytes, INFINITY);
    if (!(bytes < 0x1p63))
        return ZINF_VALUE_TOO_LARGE;
    *ret_bytes = (uint64_t)bytes;
    return ZINF_VALUE_OK;
}

zinf_value_result zinf_value_quantity(const char *text, zinf_spec_unit unit, double *ret_value,
                                      zinf_why *ret_why)
{
    const char *end;
    double value, scale;
    zinf_value_result result = split(text, unit, &end, &value, &scale, ret_why);

    if (result)
        return result;
    if (!(value * scale < 1e300))
        return ZINF_VALUE_TOO_LARGE;
    /* 100 us as the double nearest to 1e-4: a quotient of exact numbers rounds once. */
    *ret_value = scale < 1 ? value / nearbyint(1 / scale) : value * scale;
    return ZINF_VALUE_OK;
}

const char *zinf_value_format(double value, zinf_spec_unit unit, char *buf, size_t n_buf)
{
    const unit_name *best = NULL;

    if (unit == ZINF_UNIT_NONE) {
        bool whole = value == nearbyint(value) && fabs(value) < 1e17 && fabs(value) >= 1;
        snprintf(buf, n_buf, whole ? "%.0f" : "%g", value);
        return buf;
    }
    for (const unit_name *u = units[unit]; u->name; u++) {
        double scaled = value / u->scale, off = fabs(scaled - nearbyint(scaled));
        bool fits = scaled >= 1 - near_whole && off <= near_whole * scaled && scaled < 1e6;
        if (fits && (!best || u->scale > best->scale))
            best = u;
    }
    if (!best)
        best = units[unit];
    snprintf(buf, n_buf, "%g %s", value / best->scale, best->name);
    return buf;
}

unsigned zinf_edit_distance(const char *a, const char *b)
{
    unsigned rows[3][65];
    size_t n_a = strnlen(a, 63), n_b = strnlen(b, 63);

    for (unsigned j = 0; j <= n_b; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        unsigned *now = rows[i % 3], *before = rows[(i - 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= n_b; j++) {
            unsigned best = before[j - 1] + (a[i - 1] != b[j - 1]);
            if (before[j] + 1 < best)
                best = before[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                rows[(i - 2) % 3][j - 2] + 1 < best)
                best = rows[(i - 2) % 3][j - 2] + 1;
            now[j] = best;
        }
    }
    return rows[n_a % 3][n_b];
}
