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
