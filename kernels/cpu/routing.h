// The router: which experts a token goes to, which assignments fit, in which order their rows lie. Shapes:
// kernels/backend.h.
#pragma once

#include "kernels/backend.h"

namespace sy::cpu {

void route_forward(const RouteDesc& desc, ConstView logits, ConstView bias, View experts, View weights, View counts,
                   View probability, View z_squared);
void route_backward(const RouteDesc& desc, ConstView logits, ConstView experts, ConstView dweights,
                    ConstView dprobability, float z_factor, View dlogits);
void capacity(const CapacityDesc& desc, ConstView experts, ConstView weights, Index groups, Index num_experts,
              View keep);
void sort_assignments(const ExpertSplit& split, ConstView experts, ConstView keep, View rows, View tokens, View slots,
                      View counts);
void balance(const BalanceDesc& desc, ConstView counts, ConstView scope_counts, ConstView probability, ConstView kept,
             ConstView z_squared, View dprobability, View stats);
void order_arrivals(ConstView counts, Index first, View offsets, View order, View inverse);
void gather_rows(ConstView x, ConstView index, View y);
void combine_rows(ConstView x, ConstView slots, bool accumulate, View y);

}  // namespace sy::cpu
