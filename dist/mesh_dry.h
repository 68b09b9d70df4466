// The mesh of a rank among others that do not exist.
#pragma once

#include "dist/mesh.h"

namespace sy {

// Its communicators are dry (dist/comm_dry.h), and so is `world`.
Mesh make_dry_mesh(Comm& world, const Layout& layout);

}  // namespace sy
