/* runtime/paths.c - see paths.h. A path is where it leads: its links are followed, as far as it
 * exists; directories are told by device and inode where they exist, by name where they do not.
 */
#include "runtime/paths.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/checkpoint_format.h"
#include "runtime/files.h"
#include "runtime/hf.h"

enum { EXPORT, EXPORT_TEMPORARY, INIT, SAVE, RESUME, NVME, N_DIRECTORIES };

typedef struct named_path {
    const char *option;
    const char *path; /* NULL: not given */
    bool written;
    char whole[PATH_MAX]; /* absolute, without links or "." or ".."; empty: too long */
} named_path;

/* The longest part that exists, without links, and the rest as it is spelled. */
static void resolve(named_path *p)
{
    char head[PATH_MAX], found[PATH_MAX];
    size_t n = p->path ? strlen(p->path) : PATH_MAX;

    if (n >= PATH_MAX)
        return;
    while (n > 1 && p->path[n - 1] == '/')
        n--;
    const size_t all = n;
    for (;;) {
        memcpy(head, p->path, n);
        strcpy(head + n, n ? "" : ".");
        if (realpath(head, found))
            break;
        if (!n)
            return;
        while (n && p->path[n - 1] != '/')
            n--;
        while (n > 1 && p->path[n - 1] == '/')
            n--;
    }
    const char *rest = p->path + n;
    while (rest < p->path + all && *rest == '/')
        rest++;
    const int used = snprintf(p->whole, PATH_MAX, "%s%s%.*s", found,
                              rest < p->path + all && strcmp(found, "/") ? "/" : "",
                              (int)(p->path + all - rest), rest);
    if (used >= PATH_MAX)
        *p->whole = 0;
}

static bool one(const struct stat *x, const char *path)
{
    struct stat y;

    return !stat(path, &y) && x->st_dev == y.st_dev && x->st_ino == y.st_ino;
}

/* Where x is in y: "" if it is y itself, "a/b" below; NULL if it is not. */
static const char *inside(const named_path *x, const named_path *y)
{
    char at[PATH_MAX];
    struct stat info;
    const bool exists = !stat(y->whole, &info);

    if (!x->path || !y->path || !*x->whole || !*y->whole)
        return NULL;
    strcpy(at, x->whole);
    for (size_t n = strlen(at);; ) {
        if (!strcmp(at, y->whole) || (exists && one(&info, at)))
            return x->whole + n + (x->whole[n] == '/' && x->whole[n + 1]);
        if (n <= 1)
            return NULL;
        while (n > 1 && at[n - 1] != '/')
            n--;
        n -= n > 1;
        at[n] = 0;
    }
}

static zinf_status refuse(const named_path *x, const named_path *y, const char *why,
                          zinf_error *err)
{
    return zinf_fail(err, ZINF_BAD_INPUT, "%s \"%.300s\" and %s \"%.300s\": %s; give another name",
                     x->option, x->path, y->option, y->path, why);
}

/* x, a file or a directory that is not y's kind, against the directory y. */
static zinf_status check_pair(const named_path *x, const named_path *y, int kind,
                              bool x_is_directory, zinf_error *err)
{
    const char *rest = inside(x, y);

    if (!rest)
        return ZINF_OK;
    switch (kind) {
    case EXPORT:
    case EXPORT_TEMPORARY:
        return refuse(y, x, "an export is a directory of its own, new or empty, in which nothing "
                      "else may be", err);
    case INIT:
        return x->written ? refuse(x, y, "nothing is written into the model that is read", err)
                          : ZINF_OK;
    case SAVE:
    case RESUME:
        if (x->written && zinf_checkpoint_own_name(rest))
            return refuse(x, y, "that name is a checkpoint's", err);
        return ZINF_OK;
    default: /* NVME */
        if (!x_is_directory && !strncmp(rest, "zinf-rank", 9))
            return refuse(x, y, "that name is the nvme tier's", err);
        return ZINF_OK;
    }
}

/* Is the file one of those in the directory, to which it or they may lead by links? As deep as
 * checkpoints are in theirs. among_others: only what has a name of theirs counts. */
static bool is_among(const struct stat *file, const char *directory, bool among_others, int depth)
{
    char path[PATH_MAX];
    DIR *entries = opendir(directory);
    bool found = false;

    for (struct dirent *e; entries && !found && (e = readdir(entries));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") ||
            (among_others && !zinf_checkpoint_own_name(e->d_name)) ||
            snprintf(path, sizeof path, "%s/%s", directory, e->d_name) >= PATH_MAX)
            continue;
        found = one(file, path) || (depth > 0 && is_among(file, path, false, depth - 1));
    }
    if (entries)
        closedir(entries);
    return found;
}

/* What is read from directories is not written, under whatever name; a log may lie beside
 * checkpoints. */
static zinf_status check_links(const named_path *directories, const named_path *files,
                               size_t n_files, zinf_error *err)
{
    static const int read_from[] = {INIT, RESUME, SAVE};

    for (size_t x = 0; x < n_files; x++) {
        struct stat info;
        if (!files[x].written || !files[x].path || stat(files[x].path, &info) ||
            !S_ISREG(info.st_mode))
            continue;
        for (int i = 0; i < 3; i++) {
            const named_path *y = &directories[read_from[i]];
            const bool model = read_from[i] == INIT;
            if (y->path && *y->whole &&
                is_among(&info, y->whole, !model && !zinf_checkpoint_is_one(AT_FDCWD, y->whole),
                         model ? 0 : 1))
                return refuse(&files[x], y, "it is one of the files there, or a link to one", err);
        }
    }
    return ZINF_OK;
}

static zinf_status check_all(const named_path *directories, const named_path *files, size_t n_files,
                             zinf_error *err)
{
    for (int y = 0; y < N_DIRECTORIES; y++) {
        for (size_t x = 0; x < n_files; x++)
            if (check_pair(&files[x], &directories[y], y, false, err))
                return err->status;
        for (int x = 0; x < N_DIRECTORIES; x++) {
            /* one saved in the other's directory goes on there, which checkpoint_place.c checks */
            const bool ours = (x == SAVE && y == RESUME) || (x == RESUME && y == SAVE) ||
                              (x <= EXPORT_TEMPORARY && y <= EXPORT_TEMPORARY);
            if (x != y && !ours &&
                check_pair(&directories[x], &directories[y], y, true, err))
                return err->status;
            const char *rest = x == EXPORT && x != y ? inside(&directories[x], &directories[y])
                                                     : NULL;
            if (rest && !*rest && !ours)
                return refuse(&directories[x], &directories[y], "they are one directory", err);
        }
    }
    return ZINF_OK;
}

zinf_status zinf_paths_check(const zinf_run_options *o, zinf_error *err)
{
    enum { N_FILES = 6 };
    const zinf_named_file distinct[N_FILES] = {
        {"PLAN", o->plan, false}, {"--data", o->data, false}, {"--val", o->val, false},
        {"--eval", o->eval, false}, {"--log", o->log, true}, {"--trace", o->trace, true}};
    named_path *paths;

    if (zinf_files_distinct(distinct, N_FILES, err))
        return err->status;
    paths = calloc(N_DIRECTORIES + N_FILES, sizeof *paths);
    if (!paths)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for the names of files");
    named_path *files = paths + N_DIRECTORIES;
    const char *init = o->init && strcmp(o->init, "random") ? o->init : NULL;
    paths[EXPORT] = (named_path){"--export", o->export, true, ""};
    paths[EXPORT_TEMPORARY] = (named_path){"--export", NULL, true, ""};
    paths[INIT] = (named_path){"--init", init, false, ""};
    paths[SAVE] = (named_path){"--save", o->save, true, ""};
    paths[RESUME] = (named_path){"--resume", o->resume, false, ""};
    paths[NVME] = (named_path){"--nvme", o->nvme, true, ""};
    for (int i = 0; i < N_FILES; i++)
        files[i] = (named_path){distinct[i].option, distinct[i].path, distinct[i].written, ""};
    for (int i = 0; i < N_DIRECTORIES + N_FILES; i++)
        resolve(&paths[i]);
    named_path *temporary = &paths[EXPORT_TEMPORARY]; /* the name under which it is built */
    if (*paths[EXPORT].whole &&
        snprintf(temporary->whole, PATH_MAX, "%.*s%s", PATH_MAX - 20, paths[EXPORT].whole,
                 ZINF_HF_WRITING) < PATH_MAX)
        temporary->path = temporary->whole;
    const zinf_named_file export = {"--export", o->export, true};
    if (check_all(paths, files, N_FILES, err) == ZINF_OK &&
        check_links(paths, files, N_FILES, err) == ZINF_OK &&
        zinf_files_spare_checkpoints(distinct, N_FILES, err) == ZINF_OK)
        zinf_files_spare_checkpoints(&export, 1, err);
    free(paths);
    return err->status;
}
