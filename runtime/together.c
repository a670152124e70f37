/* runtime/together.c - see together.h. */
#include "runtime/together.h"

zinf_status zinf_together_create_checkpoint(zinf_ranks *ranks, const char *directory,
                                            const zinf_plan *plan, const zinf_progress *progress,
                                            zinf_checkpoint_writer **ret_writer, zinf_error *err)
{
    if (ranks->collective->rank == 0)
        zinf_checkpoint_create(directory, plan, progress, ret_writer, err);
    if (zinf_ranks_together(ranks, err))
        return err->status;
    if (ranks->collective->rank != 0)
        zinf_checkpoint_join(directory, plan, progress, ret_writer, err);
    return zinf_ranks_together(ranks, err);
}

zinf_status zinf_together_commit_checkpoint(zinf_ranks *ranks, zinf_checkpoint_writer **writer,
                                            bool *ret_placed, zinf_error *err)
{
    uint32_t n;
    uint64_t *totals = zinf_checkpoint_totals(*writer, &n);

    zinf_checkpoint_sync(*writer, err);
    if (zinf_ranks_together(ranks, err) || zinf_ranks_add(ranks, totals, n, err))
        return err->status;
    if (ranks->collective->rank == 0) {
        zinf_checkpoint_writer *mine = *writer;
        *writer = NULL;
        zinf_checkpoint_commit(mine, ret_placed, err);
    }
    return zinf_ranks_together(ranks, err);
}

zinf_status zinf_together_create_hf(zinf_ranks *ranks, const char *directory,
                                    const zinf_plan *plan, const zinf_hf_options *options,
                                    zinf_hf_writer **ret_writer, zinf_error *err)
{
    zinf_hf_writer *writer = NULL;

    if (ranks->collective->rank == 0)
        zinf_hf_create(directory, plan, options, &writer, err);
    if (zinf_ranks_together(ranks, err) == ZINF_OK) {
        if (ranks->collective->rank != 0)
            zinf_hf_join(directory, plan, options, &writer, err);
        zinf_ranks_together(ranks, err);
    }
    if (!err->status) {
        const zinf_ranks_fact same = {"directory of --export", zinf_hf_mark(writer)};
        zinf_ranks_compare(ranks, &same, 1, err);
    }
    if (err->status)
        zinf_hf_abandon(writer);
    else
        *ret_writer = writer;
    return err->status;
}

zinf_status zinf_together_commit_hf(zinf_ranks *ranks, zinf_hf_writer *writer, zinf_error *err)
{
    uint32_t n;
    uint64_t *totals = zinf_hf_totals(writer, &n);

    zinf_hf_sync(writer, err);
    if (zinf_ranks_together(ranks, err) == ZINF_OK)
        zinf_ranks_add(ranks, totals, n, err);
    if (err->status == ZINF_OK && ranks->collective->rank == 0)
        zinf_hf_commit(writer, err);
    else
        zinf_hf_abandon(writer);
    return zinf_ranks_together(ranks, err);
}
