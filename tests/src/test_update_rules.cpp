// Muon is compared with torch.optim.Muon (tests/golden/muon.py), moments in bf16 with those in f32.
#include <gtest/gtest.h>

#include <cmath>

#include "src/optimizers/newton_schulz.h"
#include "src/optimizers/update_rule.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "tests/src/golden_values.h"

namespace sy {
namespace {

std::vector<float> golden_matrix(const std::string& name, Index elements) {
  std::vector<float> x;
  for (Index i = 0; i < elements; ++i) x.push_back(golden_value(name, static_cast<std::uint32_t>(i)));
  return x;
}

const UpdateRule& rule_named(std::string_view name) {
  for (const UpdateRule& rule : update_rules())
    if (rule.name == name) return rule;
  throw std::invalid_argument("no rule");
}

// One matrix with its state on the host.
struct TrainedMatrix {
  std::unique_ptr<Device> device = make_device("cpu");
  Hyperparameters hyperparameters;
  Tensor w, g, m, coefficient = device->tensor({1}), scalars = device->tensor({3});
  Tensor squares = device->tensor({1}, DType::f64), scratch;
  Index rows, columns;

  TrainedMatrix(Index matrix_rows, Index matrix_columns)
      : w(device->tensor({matrix_rows * matrix_columns})),
        g(device->tensor(w.shape())),
        m(device->tensor(w.shape())),
        scratch(device->tensor({newton_schulz_scratch(matrix_rows, matrix_columns)})),
        rows(matrix_rows),
        columns(matrix_columns) {
    *coefficient.view().f32() = 1;
  }

  void step(const UpdateRule& rule, const std::vector<float>& gradient, double lr, Index number) {
    std::copy(gradient.begin(), gradient.end(), g.view().f32());
    device->to_device(step_scalars(hyperparameters, lr, number).data(), scalars);
    const View state[] = {m};
    const UpdateOperands operands{hyperparameters, true, coefficient, scalars, g, w, {}, state, {}};
    rule.update(*device, operands);
    const View matrix = g.view().reshape({rows, columns});
    rule.matrix_rule->direction(*device, {&matrix, 1}, squares, scratch);
    apply_direction(*device, operands, g);
  }
};

void expect_close(const std::vector<double>& expected, const float* got) {
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 2e-6) << i;
}

TEST(Muon, MatchesTorchGolden) {
  const Json golden = Json::parse(read_file(std::string(GOLDEN) + "/muon.json"));
  ASSERT_GE(golden["cases"].size(), 6u);
  for (const Json& c : golden["cases"]) {
    const Index rows = c["rows"].get<Index>(), columns = c["columns"].get<Index>(), n = rows * columns;
    const std::string name = fmt::format("{} x {}", rows, columns);
    SCOPED_TRACE(name);
    TrainedMatrix matrix(rows, columns);
    matrix.hyperparameters.weight_decay = golden["decay"].get<double>();
    matrix.hyperparameters.muon_momentum = golden["momentum"].get<double>();

    const std::vector<float> x = golden_matrix("x " + name, n), w = golden_matrix("w " + name, n);
    std::copy(x.begin(), x.end(), matrix.g.view().f32());
    const View view = matrix.g.view().reshape({rows, columns});
    newton_schulz(*matrix.device, {&view, 1}, matrix.squares, matrix.scratch);
    expect_close(c["orthogonal"].get<std::vector<double>>(), matrix.g.view().f32());

    std::copy(w.begin(), w.end(), matrix.w.view().f32());
    for (Index step = 1; step <= golden["steps"].get<Index>(); ++step)
      matrix.step(rule_named("muon"), golden_matrix(fmt::format("g{} {}", step, name), n), golden["lr"].get<double>(),
                  step);
    expect_close(c["weights"].get<std::vector<double>>(), matrix.w.view().f32());
  }
}

}  // namespace
}  // namespace sy
