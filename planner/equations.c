/* planner/equations.c - see equations.h. */
#include "planner/equations.h"

double zinf_eq1_params(double nl, double hd)
{
    return 12 * nl * hd * hd;
}

double zinf_eq2_model_state_bytes(double nl, double hd)
{
    return 240 * nl * hd * hd;
}

double zinf_eq3_checkpoint_bytes(double bsz, double seq, double hd, double nl, double ci)
{
    return 2 * bsz * seq * hd * nl / ci;
}

double zinf_eq4_mswm_bytes(double hd)
{
    return 16 * hd * hd;
}

double zinf_eq5_awm_bytes(double bsz, double seq, double ci, double hd, double attn_heads)
{
    return bsz * seq * ci * (16 * hd + 2 * attn_heads * seq);
}

double zinf_eq6_efficiency(double ait, double bw, double peak_tp)
{
    return ait * bw / (ait * bw + peak_tp);
}

double zinf_eq6_bandwidth(double ait, double efficiency, double peak_tp)
{
    return efficiency / (1 - efficiency) * peak_tp / ait;
}

double zinf_eq7_flops(double bsz, double seq, double params)
{
    return 8 * bsz * seq * params;
}

double zinf_eq8_flops(double bsz, double seq, double nl, double hd)
{
    return 2.0 * 4 * 12 * bsz * seq * nl * hd * hd;
}

double zinf_eq9_ait_param_grad(double seq, double bsz)
{
    return seq * bsz;
}

double zinf_eq10_ait_optimizer(double seq, double bsz)
{
    return seq * bsz / 4;
}

double zinf_eq11_ait_checkpoint(double hd, double ci)
{
    return 24 * hd * ci;
}

uint64_t zinf_gpt2_params(const zinf_model *m)
{
    typedef struct term {
        uint64_t factors[4]; /* ends at a 0 */
    } term;
    const term terms[] = {
        {{m->vocab, m->hidden}},
        {{m->context, m->hidden}},
        {{m->layers, 4, m->hidden}},                               /* two norms */
        {{m->layers, m->heads, m->head_dim, m->hidden}},           /* Q of QKV */
        {{m->layers, 2 * m->kv_heads, m->head_dim, m->hidden}},    /* K and V of QKV */
        {{m->layers, m->heads + 2 * m->kv_heads, m->head_dim}},    /* biases of QKV */
        {{m->layers, m->heads, m->head_dim, m->hidden}},           /* out */
        {{m->layers, m->hidden}},                                  /* bias of out */
        {{m->layers, 2, m->hidden, m->ffn}},                       /* MLP */
        {{m->layers, m->ffn + m->hidden}},                         /* biases of the MLP */
        {{2, m->hidden}},                                          /* final norm */
    };
    uint64_t sum = 0;

    for (unsigned i = 0; i < sizeof terms / sizeof *terms; i++) {
        uint64_t value = 1;
        bool over = false;
        for (unsigned j = 0; j < 4 && terms[i].factors[j]; j++)
            over |= __builtin_mul_overflow(value, terms[i].factors[j], &value);
        if (over || __builtin_add_overflow(sum, value, &sum))
            return UINT64_MAX;
    }
    return sum;
}
