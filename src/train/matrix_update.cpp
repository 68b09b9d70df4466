#include "src/train/matrix_update.h"

#include "dist/phase.h"
#include "kernels/ops/permute.h"

namespace sy {

MatrixUpdate::MatrixUpdate(ParamStore& store, std::size_t group, Comm& world)
    : backend_(store.backend()),
      world_(world),
      rule_(update_rule(store.layout().groups[group].optimizer)),
      state_(store.buffers(group).state[0]),
      exchange_(matrix_exchange(store.specs(), store.mesh_layout(), world.rank(), group)),
      shards_(backend_.tensor({exchange_.shard_elements()})),
      owned_shards_(backend_.tensor({exchange_.owner_elements()})),
      matrices_(backend_.tensor({exchange_.matrix_elements()})),
      scratch_(backend_.tensor({exchange_.scratch_elements(rule_)})),
      squares_(backend_.tensor({std::ssize(exchange_.matrices)}, DType::f64)) {
  const auto copied = [&](const std::vector<std::int32_t>& index) {
    Tensor tensor = backend_.tensor({std::ssize(index)}, DType::i32);
    backend_.to_device(index.data(), tensor);
    return tensor;
  };
  pack_ = copied(exchange_.pack);
  assemble_ = copied(exchange_.assemble);
  disassemble_ = copied(exchange_.disassemble);
  unpack_ = copied(exchange_.unpack);
  Index at = 0;
  for (const MatrixExchange::Matrix& m : exchange_.matrices) {
    views_.push_back(matrices_.view().rows(at, m.elements()).reshape({m.rows, m.columns}));
    at += m.elements();
  }
}

void MatrixUpdate::run(View direction) {
  const ScopedPhase phase("update of matrices");
  const Index width = exchange_.width;
  const auto permute = [&](ConstView x, const Tensor& index, View y) {
    ops::run(backend_,
             ops::Permute{
                 .x = x.reshape({x.dim(0) / width, width}), .index = index, .y = y.reshape({y.dim(0) / width, width})});
  };
  const View outgoing = shards_.view().rows(0, pack_.view().dim(0) * width),
             incoming = owned_shards_.view().rows(0, matrices_.view().dim(0));
  permute(state_, pack_, outgoing);
  world_.all_to_all_v(outgoing, exchange_.to_owners, incoming, exchange_.from_shards);
  permute(incoming, assemble_, matrices_);

  rule_.matrices->direction(backend_, views_, squares_, scratch_);

  Index updated = 0;
  for (const Index n : exchange_.from_owners) updated += n;
  const View returned = owned_shards_.view().rows(0, disassemble_.view().dim(0) * width),
             received = shards_.view().rows(0, updated);
  permute(matrices_, disassemble_, returned);
  world_.all_to_all_v(returned, exchange_.to_shards, received, exchange_.from_owners);
  permute(received, unpack_, direction);
}

}  // namespace sy
