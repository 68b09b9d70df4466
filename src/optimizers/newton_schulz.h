// Orthogonalisation of matrices by Newton-Schulz iterations (Jordan et al., "Muon", 2024).
#pragma once

#include <span>

#include "kernels/device.h"

namespace sy {

// Replaces each matrix U S V^T by an approximation of U V^T, by five iterations in f32.
// A singular value of at least 1 % of the Frobenius norm becomes one from 0.68 to 1.14. The host
// waits once for the norms. No-op if `matrices` is empty.
// - matrices: [rows, columns] f32
// - squares: [number of matrices] f64, memory for the squared norms
// - scratch: [n] f32, where n is the largest newton_schulz_scratch() of the matrices
void newton_schulz(Device& device, std::span<const View> matrices, View squares, View scratch);
// Returns the number of f32 elements of `scratch` for one matrix.
Index newton_schulz_scratch(Index rows, Index columns);

}  // namespace sy
