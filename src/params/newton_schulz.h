// Orthogonalisation of matrices by Newton-Schulz iterations (Jordan et al., "Muon", 2024).
#pragma once

#include <span>

#include "kernels/device.h"

namespace sy {

// Replaces each matrix U S V^T by an approximation of U V^T, whose singular values are near 1.
// The host waits once, for the Frobenius norms.
// matrices: [rows, columns] f32. squares: [number of matrices] f64. scratch: [n] f32, the largest
// newton_schulz_scratch() of the matrices.
void newton_schulz(Device& device, std::span<const View> matrices, View squares, View scratch);
Index newton_schulz_scratch(Index rows, Index columns);

}  // namespace sy
