#include "src/train/matrix_update.h"

#include "dist/phase.h"
#include "kernels/ops/permute.h"

namespace sy {

MatrixUpdate::MatrixUpdate(ParamStore& store, std::size_t group, Comm& world)
    : device_(store.device()),
      world_(world),
      rule_(update_rule(store.layout().groups[group].optimizer)),
      exchange_(matrix_exchange(store.specs(), store.mesh_layout(), world.rank(), group)),
      shards_(device_.tensor({std::ssize(exchange_.pack) * exchange_.width})),
      owned_shards_(device_.tensor({std::ssize(exchange_.disassemble) * exchange_.width})),
      matrices_(device_.tensor({exchange_.matrix_elements()})),
      scratch_(device_.tensor({exchange_.scratch_elements(rule_)})),
      squares_(device_.tensor({std::ssize(exchange_.matrices)}, DType::f64)) {
  const auto copied = [&](const std::vector<std::int32_t>& index) {
    Tensor tensor = device_.tensor({std::ssize(index)}, DType::i32);
    device_.to_device(index.data(), tensor);
    return tensor;
  };
  pack_ = copied(exchange_.pack);
  assemble_ = copied(exchange_.assemble);
  disassemble_ = copied(exchange_.disassemble);
  unpack_ = copied(exchange_.unpack);
  Index at = 0;
  for (const MatrixExchangePlan::Matrix& m : exchange_.matrices) {
    views_.push_back(matrices_.view().rows(at, m.elements()).reshape({m.rows, m.columns}));
    at += m.elements();
  }
}

void MatrixUpdate::run(View x) {
  const ScopedPhase phase(world_.rank_context(), "update of matrices");
  const Index width = exchange_.width;
  const auto permute = [&](ConstView from, const Tensor& index, View to) {
    ops::run(device_, ops::Permute{.x = from.reshape({from.dim(0) / width, width}),
                                   .index = index,
                                   .y = to.reshape({to.dim(0) / width, width})});
  };
  permute(x, pack_, shards_);
  world_.all_to_all_v(shards_, exchange_.by_owner, owned_shards_, exchange_.by_rank);
  permute(owned_shards_, assemble_, matrices_);
  rule_.matrix_rule->direction(device_, views_, squares_, scratch_);
  permute(matrices_, disassemble_, owned_shards_);
  world_.all_to_all_v(owned_shards_, exchange_.by_rank, shards_, exchange_.by_owner);
  permute(shards_, unpack_, x);
}

}  // namespace sy
