#include "src/numerics/op_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sy::numerics {

namespace {

// Bit patterns of guards, and initial value of outputs (`pattern`).
// They are NaN as f32, as bf16 and (two of them) as f64, and above all indices as i32. The guards
// of accumulated operands are finite, since adding to a NaN would not change it. The NaNs differ:
// a NaN that is read beyond one operand is detected when it is written beyond another.
constexpr std::uint32_t pattern = 0x7ff57ff5u, around_inputs = 0x7ff37ff3u, around_sums = 0x449a449au;
constexpr Index guard = 1024;

double rounded(DType dtype, double x) {
  if (dtype == DType::f32) return static_cast<double>(static_cast<float>(x));
  if (dtype == DType::bf16) return static_cast<double>(float_of_bf16(bf16_of_float(static_cast<float>(x))));
  return x;
}

void store(DType dtype, std::byte* to, std::size_t i, double value) {
  const auto put = [&](auto x) { std::memcpy(to + i * sizeof x, &x, sizeof x); };
  if (dtype == DType::f32) put(static_cast<float>(value));
  if (dtype == DType::bf16) put(bf16_of_float(static_cast<float>(value)));
  if (dtype == DType::f64) put(value);
  if (dtype == DType::i32) put(static_cast<std::int32_t>(value));
  if (dtype == DType::i64) put(static_cast<std::int64_t>(value));
}

double load(DType dtype, const std::byte* from, std::size_t i) {
  if (dtype == DType::bf16) {
    std::uint16_t bits;
    std::memcpy(&bits, from + i * sizeof bits, sizeof bits);
    return bits == (pattern & 0xffff) ? std::nan("") : static_cast<double>(float_of_bf16(bits));
  }
  const auto get = [&](auto x) {
    std::uint32_t first;
    std::memcpy(&first, from + i * sizeof x, sizeof first);
    std::memcpy(&x, from + i * sizeof x, sizeof x);
    return first == pattern ? std::nan("") : static_cast<double>(x);
  };
  return dtype == DType::f32   ? get(0.0f)
         : dtype == DType::f64 ? get(0.0)
         : dtype == DType::i64 ? get(std::int64_t{0})
                               : get(std::int32_t{0});
}

double root_mean_square(const Numbers& x) {
  double sum = 0, n = 0;
  for (double v : x)
    if (std::isfinite(v)) {
      sum += v * v;
      ++n;
    }
  return n > 0 ? std::sqrt(sum / n) : 0;
}

bool close(double got, double want, double allowed) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  return got == want || std::abs(got - want) <= allowed;
}

}  // namespace

void OpCase::operand(Name name, Role role, Shape shape, DType dtype, Numbers values) {
  SY_ASSERT(static_cast<Index>(values.size()) == shape.elements(), "{}: {} values", name.name, values.size());
  for (double& x : values) x = rounded(dtype, x);
  values_[name.name] = std::move(values);
  operands_.push_back({std::move(name.name), std::move(name.assign), role, shape, dtype, {}});
}

Numbers OpCase::normal(const std::string& name, Shape shape, double deviation) const {
  const RandomStream stream(1, name + shape.str());
  Numbers x(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = stream.normal(i) * deviation;
  return x;
}

Numbers OpCase::whole(const std::string& name, Shape shape, Index low, Index high) const {
  const RandomStream stream(1, name + shape.str());
  Numbers x(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<double>(low) + std::floor(stream.uniform(i) * static_cast<double>(high - low));
  return x;
}

View OpCase::at(const std::string& name) const {
  const auto found = std::ranges::find(operands_, name, &Operand::name);
  return found == operands_.end() ? View() : found->view;
}

std::string OpCase::describe() const {
  std::string s = note;
  for (const Operand& o : operands_) s += (s.empty() ? "" : " ") + o.name + o.shape.str();
  return s;
}

std::vector<std::string> OpCase::errors(Device& device) {
  errors_.clear();
  allocate_operands(device);
  run(device);
  device.synchronize();
  const Values got = fetch(device);
  Values want = values_;
  expect(want);
  for (const Operand& o : operands_) {
    const bool is_gradient = std::ranges::find(gradients, o.name, &Gradient::output) != gradients.end();
    if (o.role == Role::hidden || (is_gradient && want.at(o.name) == values_.at(o.name))) continue;
    compare(o, got.at(o.name), want.at(o.name), o.role == Role::in ? 0.0 : tolerance);
  }
  for (const Gradient& g : gradients) check_gradient(g, got.at(g.output));
  memory_.clear();
  return errors_;
}

std::vector<std::uint32_t> OpCase::untouched(const Operand& o) {
  const Index bytes = o.shape.elements() * size_of(o.dtype);
  return std::vector<std::uint32_t>(static_cast<std::size_t>((bytes + 3) / 4 + 2 * guard / 4),
                                    o.role == Role::in    ? around_inputs
                                    : o.role == Role::out ? pattern
                                                          : around_sums);
}

void OpCase::allocate_operands(Device& device) {
  memory_.clear();
  for (Operand& o : operands_) {
    if (o.role == Role::hidden) continue;
    const Numbers& values = values_.at(o.name);
    std::vector<std::uint32_t> host = untouched(o);
    auto* const begin = reinterpret_cast<std::byte*>(host.data()) + guard;
    if (o.role != Role::out)
      for (std::size_t i = 0; i < values.size(); ++i) store(o.dtype, begin, i, values[i]);
    memory_.push_back(device.allocate(std::ssize(host) * 4));
    device.to_device(host.data(), View(memory_.back().get(), {std::ssize(host)}, DType::i32));
    o.view = View(memory_.back().get() + guard, o.shape, o.dtype);
    o.assign(o.view);
  }
}

Values OpCase::fetch(Device& device) {
  Values got;
  for (const Operand& o : operands_) {
    if (o.role == Role::hidden) continue;
    const Index end = guard + o.shape.elements() * size_of(o.dtype);
    const std::vector<std::uint32_t> start = untouched(o);
    std::vector<std::uint32_t> host(start.size());
    device.to_host(ConstView(o.view.bytes() - guard, {static_cast<Index>(host.size())}, DType::i32), host.data());
    const auto* const all = reinterpret_cast<const std::byte*>(host.data());
    const auto* const before = reinterpret_cast<const std::byte*>(start.data());
    const std::size_t size = host.size() * 4;
    if (!std::equal(all, all + guard, before) || !std::equal(all + end, all + size, before + end))
      errors_.push_back(fmt::format("wrote outside {}, within {} bytes", o.name, guard));
    Numbers& values = got[o.name];
    for (Index i = 0; i < o.shape.elements(); ++i)
      values.push_back(load(o.dtype, all + guard, static_cast<std::size_t>(i)));
  }
  return got;
}

double OpCase::rounding(const Operand& o, double value, double rms) const {
  return o.dtype == DType::bf16 ? 0x1p-8 * std::abs(value) + bf16_tolerance * rms : 0.0;
}

void OpCase::compare(const Operand& o, const Numbers& got, const Numbers& want, double allowed) {
  if (got.size() != want.size()) {
    errors_.push_back(fmt::format("{}: {} elements, expected {}", o.name, got.size(), want.size()));
    return;
  }
  const double rms = root_mean_square(want);
  Index wrong = 0;
  std::string first;
  for (std::size_t i = 0; i < want.size(); ++i)
    if (!close(got[i], want[i], allowed > 0 ? allowed * (std::abs(want[i]) + rms) + rounding(o, want[i], rms) : 0) &&
        ++wrong <= 3)
      first += fmt::format("{}{}[{}] = {:.8g}, expected {:.8g}{}", first.empty() ? "" : "; ", o.name, i, got[i],
                           want[i], std::isnan(got[i]) ? " (NaN, or left unwritten)" : "");
  if (wrong > 0)
    errors_.push_back(fmt::format("{}: {} of {} elements are wrong: {}", o.name, wrong, want.size(), first));
}

void OpCase::check_gradient(const Gradient& g, const Numbers& got) {
  const Operand& o = *std::ranges::find(operands_, g.output, &Operand::name);
  Numbers gradient = got;
  if (o.role == Role::accumulate)
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] -= values_.at(g.output)[i];
  Values v = values_;
  Numbers& x = v.at(g.of);
  if (x.size() != gradient.size()) {
    errors_.push_back(fmt::format("{}: {} elements, expected {}", g.output, gradient.size(), x.size()));
    return;
  }
  // Derivative of the loss along a direction. direction(j): change of element j.
  const Numbers start = x;
  const auto slope = [&](const auto& direction) {
    constexpr double h = 1e-4;
    double side[2];
    for (int i : {0, 1}) {
      for (std::size_t j = 0; j < x.size(); ++j) x[j] = start[j] + (i == 0 ? h : -h) * direction(j);
      side[i] = loss(v);
    }
    x = start;
    return (side[0] - side[1]) / (2 * h);
  };

  constexpr std::size_t all = 120, sample = 24, directions = 3;
  const RandomStream random(2, g.output);
  const double rms = root_mean_square(gradient);
  // An accumulated gradient includes the rounding error of the sum.
  const double sum = o.role == Role::accumulate ? root_mean_square(got) : 0;
  const double allowed = gradient_tolerance * rms + (sum > 0 ? 1e-6 : 1e-9) + rounding(o, 6 * sum, rms);
  Index wrong = 0;
  for (std::size_t i = 0; i < std::min(x.size(), x.size() <= all ? all : sample); ++i) {
    const std::size_t at = x.size() <= all ? i : random.bits(i) % x.size();
    const double want = slope([&](std::size_t j) { return j == at ? 1.0 : 0.0; });
    if (!close(gradient[at], want, allowed + gradient_tolerance * std::abs(want) + rounding(o, want, 0)) &&
        ++wrong <= 3)
      errors_.push_back(fmt::format("{}[{}] = {:.8g}, finite difference {:.8g}", g.output, at, gradient[at], want));
  }
  if (x.size() <= all) return;
  for (std::size_t d = 0; d < directions; ++d) {
    const auto direction = [&](std::size_t j) { return random.bits((d + 1) << 40 | j) & 1 ? 1.0 : -1.0; };
    double got_slope = 0;
    for (std::size_t j = 0; j < x.size(); ++j) got_slope += gradient[j] * direction(j);
    // The sum of bf16 roundings is sometimes several times its standard deviation.
    const double want = slope(direction),
                 bound = (allowed + rounding(o, 0, rms)) * std::sqrt(static_cast<double>(x.size()));
    if (!(std::abs(got_slope - want) <= bound))
      errors_.push_back(
          fmt::format("{} along random direction {} = {:.8g}, finite difference {:.8g}", g.output, d, got_slope, want));
  }
}

}  // namespace sy::numerics
