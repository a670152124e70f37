/* runtime/plan_shapes.h - do the operands of one instruction fit its opcode and each other? */
#ifndef ZINF_RUNTIME_PLAN_SHAPES_H
#define ZINF_RUNTIME_PLAN_SHAPES_H

#include "runtime/plan.h"

/* Slots, element types, layouts, shapes, attributes and scratch of instrs[index], whose ranges
 * of operands and enumerations were checked already. */
zinf_status zinf_plan_check_shapes(const zinf_plan *plan, uint32_t index, zinf_error *err);

#endif
