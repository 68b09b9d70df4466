// The reference implementation of all operations (numbers.h).
#pragma once

#include "src/numerics/reference/attention.h"
#include "src/numerics/reference/batch_norm.h"
#include "src/numerics/reference/dense.h"
#include "src/numerics/reference/indexer.h"
#include "src/numerics/reference/loss.h"
#include "src/numerics/reference/lsh.h"
#include "src/numerics/reference/routing.h"
