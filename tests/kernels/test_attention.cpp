// Attention and its gradients against a double-precision reference with the whole S x S matrix.
// The reference's gradients are compared with finite differences.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <omp.h>

#include "kernels/ops/attention.h"
#include "kernels/ops/elementwise.h"
#include "tests/kernels/op_case.h"

namespace sy::test {
namespace {

struct Case {
  Index B, S, H, K, hd;  // S queries
  bool causal = true;
  Index window = 0;
  float softcap = 0;
  // Options of generation with a cache, latent attention and packed documents.
  Index vd = hd;               // width of values
  Index keys = S, offset = 0;  // number of keys, and of keys before the first query
  Index document = 0;          // length (about) of the documents of a sequence; 0: one document
  // True: q, k, v in separate tensors with gaps. False: in one tensor if they fit.
  bool apart = false;
  // If not negative: forward alone, with query_offsets. Each sequence's offset is less by this than
  // that of the sequence before.
  Index fewer = -1;
  SparsePattern sparse = {};
  Index biases = 0;  // number of biases per head
  bool sinks = false;
  // Greater than 0: there are key_lengths, and each sequence has fewer keys by it than the one
  // before.
  Index shorter = 0;
  Index prefix = 0;  // length (about) of the visible prefix of a document; 0: it has none

  Index q_size() const { return B * S * H * hd; }
  Index k_size() const { return B * keys * K * hd; }
  Index v_size() const { return B * keys * K * vd; }
  Index out_size() const { return B * S * H * vd; }

  Index offset_of(Index b) const { return fewer < 0 ? offset : offset - b * fewer; }
  // Returns the first token of the document of query i of sequence b.
  // Documents differ in length within a sequence, and between sequences.
  Index document_start(Index b, Index i) const {
    if (document == 0) return 0;
    Index begin = 0;
    for (Index n = 0, at = i + offset_of(b); begin + document + (b + n) % 3 <= at; ++n) begin += document + (b + n) % 3;
    return begin;
  }
  // Returns the end of the visible prefix of the query's document. Prefixes differ in length.
  Index prefix_end(Index b, Index i) const {
    const Index first = document_start(b, i);
    Index end = first;
    const Index longest = first + prefix + (first + b) % 3, last = std::min(longest, offset_of(b) + S);
    while (end < last && document_start(b, end - offset_of(b)) == first) ++end;
    return end;
  }
  bool sees(Index b, Index i, Index j) const {
    const Index at = i + offset_of(b);
    const Index first = document_start(b, i);
    if (prefix > 0 && j > at && j < prefix_end(b, i)) return true;
    if (causal ? j > at : document_start(b, i) != document_start(b, j - offset_of(b))) return false;
    return (window == 0 || (j > at - window && (causal || j < at + window))) && j >= first && j < keys - b * shorter &&
           ref::sees(sparse, at - first, j - first);
  }
  bool sees_later_keys() const { return !causal || prefix > 0; }
  AttentionDesc desc(ConstView first_keys = {}, ConstView query_offsets = {}, ConstView key_lengths = {},
                     ConstView prefix_ends = {}) const {
    return {1.3f / std::sqrt(float(hd)),
            softcap,
            {.causal = causal,
             .window = window,
             .query_offset = fewer < 0 ? offset : 0,
             .document_start = first_keys,
             .sparse = sparse,
             .query_offsets = query_offsets,
             .key_lengths = key_lengths,
             .prefix_end = prefix_ends},
            {},
            prefix > 0,
            {}};
  }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "B " << c.B << " S " << c.S << " H " << c.H << " K " << c.K << " hd " << c.hd << " causal " << c.causal
             << " window " << c.window << " softcap " << c.softcap << " vd " << c.vd << " keys " << c.keys << " offset "
             << c.offset << " document " << c.document << " apart " << c.apart << " fewer " << c.fewer << " local "
             << c.sparse.local << " block " << c.sparse.block << " summary " << c.sparse.summary << " stride "
             << c.sparse.stride << " global " << c.sparse.global << " biases " << c.biases << " sinks " << c.sinks
             << " shorter " << c.shorter << " prefix " << c.prefix;
}

template <class T>
struct Inputs {
  std::vector<T> q, k, v, dout;
  std::vector<T> bias, sinks;  // [H, biases] in the order of the operation; [H]
};
using Exact = Inputs<double>;

// Runs forward and backward of the reference.
ref::Attention expected(const Case& c, const Exact& x) {
  const auto operand = [](const std::vector<double>& data, Index positions, Index heads, Index width) {
    return ref::HeadsOf{data.data(), positions, heads, 0, heads, width};
  };
  const auto sees = [&](Index b, Index i, Index j) { return c.sees(b, i, j); };
  // The reference orders biases by ascending distance, the operation by descending distance.
  const auto backwards = [&](std::vector<double> bias) {
    for (Index h = 0; h < c.H && !bias.empty(); ++h)
      std::reverse(bias.begin() + h * c.biases, bias.begin() + (h + 1) * c.biases);
    return bias;
  };
  std::vector<Index> offsets;
  for (Index b = 0; b < c.B; ++b) offsets.push_back(c.offset_of(b));
  ref::Attention found = ref::attention(c.B, operand(x.q, c.S, c.H, c.hd), operand(x.k, c.keys, c.K, c.hd),
                                        operand(x.v, c.keys, c.K, c.vd), c.desc().scale, c.softcap, sees, &x.dout,
                                        {backwards(x.bias), x.sinks, c.sees_later_keys() ? c.biases / 2 : 0}, offsets);
  found.dbias = backwards(found.dbias);
  return found;
}

std::vector<float> random_floats(Index count, unsigned seed, float range = 1.5f) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-range, range);
  std::vector<float> v(count);
  for (float& x : v) x = uniform(generator);
  return v;
}

struct Result {
  std::vector<float> out, lse, dq, dk, dv;
  std::vector<float> dbias, dsinks;  // added to the initial value `before`
  static constexpr float before = 0.75f;
  bool operator==(const Result&) const = default;
};

class Attention : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!GetParam().available()) GTEST_SKIP() << "no device";
    device = GetParam().make();
  }

  static DType dtype() { return GetParam().dtype; }
  std::vector<float> random_operand(Index count, unsigned seed, float range = 1.5f) const {
    std::vector<float> v = random_floats(count, seed, range);
    if (dtype() == DType::bf16)
      for (float& x : v) x = float_of_bf16(bf16_of_float(x));
    return v;
  }

  Inputs<float> random_inputs(const Case& c, float range = 1.5f) const {
    return {random_operand(c.q_size(), 1, range),    random_operand(c.k_size(), 2, range),
            random_operand(c.v_size(), 3, range),    random_operand(c.out_size(), 4),
            random_floats(c.H * c.biases, 5, range), random_floats(c.sinks ? c.H : 0, 6, range)};
  }

  Result run(const Case& c, const Inputs<float>& x, int threads = 2) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    const bool is_contiguous = !c.apart && c.keys == c.S && c.vd == c.hd;
    const Operand q{c.B, c.S, c.H, c.hd}, k{c.B, c.keys, c.K, c.hd}, v{c.B, c.keys, c.K, c.vd};
    const std::vector<Operand> operands{q, k, v};
    Arranged in(*device, dtype(), operands, is_contiguous), gradients(*device, dtype(), operands, is_contiguous);
    in.set({x.q, x.k, x.v});
    const Shape out_shape = {c.B, c.S, c.H, c.vd};
    const Guarded d(*device, out_shape, dtype(), x.dout);
    const Guarded out(*device, out_shape, dtype()), lse(*device, {c.B, c.H, c.S}, DType::f32);
    std::vector<std::int32_t> first;
    for (Index b = 0; b < c.B; ++b)
      for (Index i = 0; i < c.S; ++i) first.push_back(static_cast<std::int32_t>(c.document_start(b, i)));
    const Tensor first_keys = device->tensor({c.B, c.S}, DType::i32);
    device->to_device(first.data(), first_keys);
    std::vector<std::int32_t> offsets;
    for (Index b = 0; b < c.B; ++b) offsets.push_back(static_cast<std::int32_t>(c.offset_of(b)));
    const Tensor query_offsets = device->tensor({c.B}, DType::i32);
    device->to_device(offsets.data(), query_offsets);
    std::vector<std::int32_t> lengths;
    for (Index b = 0; b < c.B; ++b) lengths.push_back(static_cast<std::int32_t>(c.keys - b * c.shorter));
    const Tensor key_lengths = device->tensor({c.B}, DType::i32);
    device->to_device(lengths.data(), key_lengths);
    std::vector<std::int32_t> ends;
    for (Index b = 0; b < c.B; ++b)
      for (Index i = 0; i < c.S; ++i) ends.push_back(static_cast<std::int32_t>(c.prefix_end(b, i)));
    const Tensor prefix_ends = device->tensor({c.B, c.S}, DType::i32);
    device->to_device(ends.data(), prefix_ends);
    AttentionDesc desc = c.desc(
        c.document > 0 ? ConstView(first_keys) : ConstView{}, c.fewer < 0 ? ConstView{} : ConstView(query_offsets),
        c.shorter > 0 ? ConstView(key_lengths) : ConstView{}, c.prefix > 0 ? ConstView(prefix_ends) : ConstView{});
    const Guarded bias(*device, {c.H, c.biases}, DType::f32, x.bias),
        sinks(*device, {c.sinks ? c.H : 0}, DType::f32, x.sinks);
    const auto all_before = [](const std::vector<float>& values) {
      return std::vector<float>(values.size(), Result::before);
    };
    const Guarded dbias(*device, {c.H, c.biases}, DType::f32, all_before(x.bias)),
        dsinks(*device, {c.sinks ? c.H : 0}, DType::f32, all_before(x.sinks));
    if (c.biases > 0) desc.bias = bias.view;
    if (c.sinks) desc.sinks = sinks.view;
    ops::run(*device,
             ops::AttentionForward{
                 .q = in.heads(0), .k = in.heads(1), .v = in.heads(2), .desc = desc, .out = out.view, .lse = lse.view});
    if (c.fewer >= 0) {
      omp_set_num_threads(before);
      return {out.values(), lse.values(), {}, {}, {}, {}, {}};
    }
    ops::run(*device, ops::AttentionBackward{.dout = d.view,
                                             .q = in.heads(0),
                                             .k = in.heads(1),
                                             .v = in.heads(2),
                                             .out = out.view,
                                             .lse = lse.view,
                                             .desc = desc,
                                             .dq = gradients.heads(0),
                                             .dk = gradients.heads(1),
                                             .dv = gradients.heads(2)});
    if (desc.bias || desc.sinks)
      ops::run(*device, ops::AttentionBackwardLearned{.dout = d.view,
                                                      .q = in.heads(0),
                                                      .k = in.heads(1),
                                                      .v = in.heads(2),
                                                      .out = out.view,
                                                      .lse = lse.view,
                                                      .desc = desc,
                                                      .dbias = desc.bias ? dbias.view : View(),
                                                      .dsinks = desc.sinks ? dsinks.view : View()});
    omp_set_num_threads(before);
    return {out.values(),     lse.values(),   gradients.get(0), gradients.get(1),
            gradients.get(2), dbias.values(), dsinks.values()};
  }

  void check(const Case& c, float range = 1.5f) {
    SCOPED_TRACE(testing::Message() << c);
    const Inputs<float> x = random_inputs(c, range);
    const auto exact = [](const std::vector<float>& f) { return std::vector<double>(f.begin(), f.end()); };
    ref::Attention want =
        expected(c, {exact(x.q), exact(x.k), exact(x.v), exact(x.dout), exact(x.bias), exact(x.sinks)});
    const Result got = run(c, x);
    expect_near(got.lse, want.lse, 1e-5, "lse");
    const bool bf16 = dtype() == DType::bf16;
    // Errors of single bf16 elements may be several times their rounding, since D is a difference.
    const auto near = bf16 ? expect_near_in_sum : expect_near;
    near(got.out, want.out, bf16 ? 4e-3 : 1e-5, "out");
    if (c.fewer >= 0) return;
    // Compares all gradients together. For large scores in bf16, the gradients of queries and keys
    // are small differences.
    const auto joined = [](const auto& r) {
      auto all = r.dq;
      all.insert(all.end(), r.dk.begin(), r.dk.end());
      all.insert(all.end(), r.dv.begin(), r.dv.end());
      return all;
    };
    near(joined(got), joined(want), (bf16 ? 7e-3 : 2e-5) * range, "gradients");
    // These gradients are sums over many pairs, which may cancel.
    for (auto* sums : {&want.dbias, &want.dsinks})
      for (double& sum : *sums) sum += Result::before;
    near(got.dbias, want.dbias, (bf16 ? 7e-3 : 4e-5) * range, "dbias");
    near(got.dsinks, want.dsinks, (bf16 ? 7e-3 : 4e-5) * range, "dsinks");
  }

  std::unique_ptr<Device> device;

 private:
  // An operand between margins that must not change.
  // Outputs start as NaNs, to find unwritten elements.
  struct Guarded {
    static constexpr Index margin = 64;
    static constexpr float untouched = 12352.0f;  // exact in bf16

    Device& device;
    Tensor all;
    View view;

    Guarded(Device& b, Shape shape, DType type, const std::vector<float>& values = {})
        : device(b),
          all(b.tensor({shape.elements() + 2 * margin}, type)),
          view(all.view().bytes() + margin * size_of(type), shape, type) {
      std::vector<float> host(all.view().elements(), untouched);
      if (values.empty())
        std::fill_n(host.begin() + margin, shape.elements(), std::numeric_limits<float>::quiet_NaN());
      else
        std::copy(values.begin(), values.end(), host.begin() + margin);
      const Tensor exact = b.tensor(all.shape());
      b.to_device(host.data(), exact);
      ops::run(b, ops::Convert{.x = exact, .y = all});
    }
    std::vector<float> values() const {
      const Tensor exact = device.tensor(all.shape());
      ops::run(device, ops::Convert{.x = all, .y = exact});
      std::vector<float> host(all.view().elements());
      device.to_host(exact, host.data());
      for (Index i = 0; i < margin; ++i) {
        EXPECT_EQ(host[i], untouched) << "wrote before the output";
        EXPECT_EQ(host[host.size() - 1 - i], untouched) << "wrote behind the output";
      }
      return {host.begin() + margin, host.end() - margin};
    }
  };

  struct Operand {
    Index sequences, positions, heads, width;
    Index elements() const { return sequences * positions * heads * width; }
  };

  // Several operands: adjacent heads of one tensor, or each in its own tensor with more heads and
  // more positions. The other elements of the tensors must not change.
  class Arranged {
   public:
    Arranged(Device& device, DType type, const std::vector<Operand>& operands, bool is_contiguous)
        : device_(device), operands_(operands) {
      Index all_heads = 0;
      for (const Operand& o : operands) all_heads += o.heads;
      for (const Operand& o : operands) {
        if (!is_contiguous) {
          tensors_.push_back(device.tensor({o.sequences, o.positions + 3, o.heads + 2, o.width}, type));
          Heads heads(tensors_.back().view(), 1, o.heads);
          heads.positions = o.positions;  // the last three positions are unused, as in a cache
          heads_.push_back(heads);
          continue;
        }
        if (tensors_.empty()) tensors_.push_back(device.tensor({o.sequences, o.positions, all_heads, o.width}, type));
        const Index first = heads_.empty() ? 0 : first_ + heads_.back().heads;
        first_ = first;
        heads_.emplace_back(tensors_.back().view(), first, o.heads);
      }
      for (const Tensor& t : tensors_) write(t, std::vector<float>(t.shape().elements(), untouched));
      // Outputs start as NaNs, to find unwritten elements.
      set(std::vector<std::vector<float>>(
          operands.size(),
          std::vector<float>(operands.front().elements() + operands.back().elements() + operands[1].elements(),
                             std::numeric_limits<float>::quiet_NaN())));
    }
    Heads heads(std::size_t i) const { return heads_[i]; }

    void set(const std::vector<std::vector<float>>& values) {
      for (std::size_t i = 0; i < heads_.size(); ++i) {
        const Tensor& t = tensors_[tensors_.size() == 1 ? 0 : i];
        std::vector<float> all = read(t);
        each(i, [&](std::size_t at, std::size_t n) { all[at] = values[i][n]; });
        write(t, all);
      }
    }
    std::vector<float> get(std::size_t i) const {
      std::vector<float> all = read(tensors_[tensors_.size() == 1 ? 0 : i]), found(operands_[i].elements());
      each(i, [&](std::size_t at, std::size_t n) { found[n] = all[at], all[at] = untouched; });
      if (tensors_.size() > 1) {
        for (float x : all) EXPECT_EQ(x, untouched) << "wrote beside an output";
      }
      return found;
    }

   private:
    static constexpr float untouched = 12352.0f;  // exact in bf16

    // Calls visit(offset in the tensor, index of the element) for each element of an operand.
    template <class Visit>
    void each(std::size_t i, const Visit& visit) const {
      const Heads& h = heads_[i];
      const Index before = (h.data - tensors_[tensors_.size() == 1 ? 0 : i].view().bytes()) / size_of(h.dtype);
      std::size_t n = 0;
      for (Index b = 0; b < h.sequences; ++b)
        for (Index s = 0; s < h.positions; ++s)
          for (Index c = 0; c < h.heads * h.width; ++c)
            visit(static_cast<std::size_t>(before + b * h.sequence_stride + s * h.token_stride + c), n++);
    }
    void write(const Tensor& t, const std::vector<float>& values) {
      const Tensor exact = device_.tensor(t.shape());
      device_.to_device(values.data(), exact);
      ops::run(device_, ops::Convert{.x = exact, .y = t});
    }
    std::vector<float> read(const Tensor& t) const {
      const Tensor exact = device_.tensor(t.shape());
      ops::run(device_, ops::Convert{.x = t, .y = exact});
      std::vector<float> host(t.shape().elements());
      device_.to_host(exact, host.data());
      return host;
    }

    Device& device_;
    std::vector<Operand> operands_;
    std::vector<Tensor> tensors_;
    std::vector<Heads> heads_;
    Index first_ = 0;
  };

  static void expect_near(const std::vector<float>& got, const std::vector<double>& want, double tolerance,
                          const char* what) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], tolerance * (1 + std::fabs(want[i]))) << what << " at " << i;
  }
  static void expect_near_in_sum(const std::vector<float>& got, const std::vector<double>& want, double tolerance,
                                 const char* what) {
    ASSERT_EQ(got.size(), want.size());
    double error = 0, sum = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      sum += want[i] * want[i];
    }
    // The absolute term is for gradients that vanish, as with a single key.
    EXPECT_LE(std::sqrt(error), tolerance * std::sqrt(sum) + 1e-5) << what;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, Attention, testing::ValuesIn(targets), target_name);

TEST(AttentionReference, GradientMatchesFiniteDifferences) {
  for (const Case& c :
       {Case{1, 5, 2, 1, 3}, Case{2, 4, 2, 2, 2, false}, Case{1, 6, 1, 1, 3, true, 2},
        Case{1, 5, 2, 1, 3, true, 0, 1.5f}, Case{1, 5, 2, 1, 2, false, 3, 2.0f},
        Case{.B = 2, .S = 4, .H = 2, .K = 1, .hd = 3, .vd = 2, .keys = 7, .offset = 2},
        Case{.B = 2, .S = 7, .H = 1, .K = 1, .hd = 2, .document = 3},
        Case{.B = 2, .S = 4, .H = 2, .K = 1, .hd = 3, .keys = 7, .offset = 2, .biases = 8, .sinks = true},
        Case{.B = 2, .S = 4, .H = 2, .K = 1, .hd = 3, .causal = false, .keys = 6, .biases = 13, .sinks = true},
        Case{.B = 1, .S = 6, .H = 2, .K = 1, .hd = 2, .softcap = 2, .sinks = true},
        Case{.B = 1, .S = 7, .H = 1, .K = 1, .hd = 2, .sparse = SparsePattern::fixed(3, 1), .biases = 7},
        Case{.B = 2, .S = 9, .H = 2, .K = 1, .hd = 2, .causal = false, .window = 2, .document = 4},
        Case{.B = 1, .S = 9, .H = 1, .K = 1, .hd = 2, .causal = false, .sparse = SparsePattern::longformer(2, 1)}}) {
    SCOPED_TRACE(testing::Message() << c);
    const auto random = [](Index size, unsigned seed) {
      const std::vector<float> f = random_floats(size, seed);
      return std::vector<double>(f.begin(), f.end());
    };
    Exact x{random(c.q_size(), 3),   random(c.k_size(), 4),     random(c.v_size(), 5),
            random(c.out_size(), 6), random(c.H * c.biases, 7), random(c.sinks ? c.H : 0, 8)};
    const ref::Attention r = expected(c, x);
    const auto loss = [&] {
      const ref::Attention at = expected(c, x);
      double sum = 0;
      for (Index i = 0; i < c.out_size(); ++i) sum += at.out[i] * x.dout[i];
      return sum;
    };
    for (const auto& [values, gradient] :
         {std::pair{&x.q, &r.dq}, {&x.k, &r.dk}, {&x.v, &r.dv}, {&x.bias, &r.dbias}, {&x.sinks, &r.dsinks}})
      for (std::size_t i = 0; i < values->size(); ++i) {
        const double before = (*values)[i], step = 1e-5;
        (*values)[i] = before + step;
        const double above = loss();
        (*values)[i] = before - step;
        const double below = loss();
        (*values)[i] = before;
        ASSERT_NEAR((*gradient)[i], (above - below) / (2 * step), 1e-8) << "at " << i;
      }
  }
}

TEST_P(Attention, MatchesReferenceForEveryCombination) {
  for (Index S : {1, 2, 67, 130})
    for (const auto& [H, K] : {std::pair<Index, Index>{3, 3}, {4, 2}, {3, 1}})
      for (bool causal : {true, false})
        for (Index window : {0, 1, 20})
          for (float softcap : {0.0f, 2.0f}) check({2, S, H, K, 16, causal, window, softcap});
}

TEST_P(Attention, MatchesReferenceForManyHeadWidths) {
  for (Index hd : {1, 4, 17, 32, 40, 64, 80, 96, 128, 150, 192, 256}) check({1, 67, 2, 1, hd});
}

// Visible prefixes: of sequences and of documents, of a token, of more than a block, and of all
// tokens; with biases to both sides; and of queries in a cache.
TEST_P(Attention, MatchesReferenceForVisiblePrefixes) {
  for (Index prefix : {1, 5, 40, 1000})
    for (Index document : {0, 13, 90}) {
      check({.B = 2, .S = 67, .H = 4, .K = 2, .hd = 16, .document = document, .prefix = prefix});
      check({.B = 2, .S = 5, .H = 3, .K = 1, .hd = 17, .softcap = 2, .document = document, .prefix = prefix});
      check({.B = 2,
             .S = 130,
             .H = 2,
             .K = 1,
             .hd = 8,
             .document = document,
             .biases = 2 * 130 + 1,
             .sinks = true,
             .prefix = prefix});
    }
  for (Index document : {0, 300})  // several blocks of keys
    check({.B = 1, .S = 530, .H = 1, .K = 1, .hd = 8, .document = document, .prefix = 270});
  check({.B = 1, .S = 150, .H = 2, .K = 1, .hd = 128, .prefix = 70});
  for (Index prefix : {9, 300})  // a prompt in a cache of 400 positions
    check({.B = 2, .S = 300, .H = 2, .K = 1, .hd = 16, .keys = 400, .apart = true, .fewer = 0, .prefix = prefix});
  check({.B = 1, .S = 20, .H = 2, .K = 1, .hd = 300, .vd = 280, .keys = 30, .apart = true, .fewer = 0, .prefix = 15});
}

// Several blocks of keys for wide heads; the last block is not full.
TEST_P(Attention, MatchesReferenceForWideHeads) {
  for (Index hd : {96, 128}) {
    check({.B = 1, .S = 150, .H = 2, .K = 1, .hd = hd, .window = 40});
    check({.B = 2, .S = 131, .H = 1, .K = 1, .hd = hd, .softcap = 2, .keys = 270, .offset = 139, .document = 90});
  }
}

TEST_P(Attention, MatchesReferenceForLongSequences) {
  for (Index S : {256, 257, 530})
    for (const auto& [causal, window] :
         {std::pair<bool, Index>{true, 0}, {false, 0}, {true, 100}, {true, 300}, {false, 230}})
      check({1, S, 2, 1, 8, causal, window});
  check({1, 700, 1, 1, 8, true, 30, 5.0f});
}

TEST_P(Attention, StaysFiniteForLargeScores) {
  // Scores are in the hundreds. D is a difference of products. In bf16 their rounding exceeds the
  // difference, and grows with the scores.
  check({1, 40, 1, 1, 16, true, 0, 0}, dtype() == DType::bf16 ? 12.0f : 20.0f);
}

TEST_P(Attention, KeepsNoNansBetweenCalls) {
  for (const Case& c : {Case{1, 20, 2, 1, 20}, Case{1, 300, 2, 1, 20}, Case{1, 300, 2, 1, 20, false},
                        Case{1, 400, 2, 1, 20, true, 10}}) {
    const auto nans = [](Index n) { return std::vector<float>(n, std::numeric_limits<float>::quiet_NaN()); };
    run(c, {nans(c.q_size()), nans(c.k_size()), nans(c.v_size()), nans(c.out_size()), {}, {}});
    check(c);
  }
}

TEST_P(Attention, AcceptsEmptySizes) {
  for (const Case& c : {Case{0, 5, 2, 1, 4}, Case{2, 0, 2, 1, 4}}) {
    const Result r = run(c, {});
    EXPECT_TRUE(r.out.empty() && r.lse.empty() && r.dq.empty() && r.dk.empty() && r.dv.empty());
  }
  check({.B = 2, .S = 0, .H = 2, .K = 1, .hd = 4, .keys = 5});  // keys without queries
}

// Keys and values of different widths, in tensors with other data around them.
TEST_P(Attention, MatchesReferenceForValuesOfAnotherWidth) {
  for (const auto& [hd, vd] :
       {std::pair<Index, Index>{16, 8}, {8, 16}, {24, 17}, {96, 64}, {192, 128}, {40, 200}, {19, 5}, {193, 71}})
    for (Index window : {0, 20})
      check({.B = 2, .S = 67, .H = 4, .K = 2, .hd = hd, .window = window, .vd = vd, .apart = true});
  for (Index hd : {5, 16, 64}) check({.B = 2, .S = 70, .H = 3, .K = 3, .hd = hd, .apart = true});
  check({.B = 1, .S = 300, .H = 2, .K = 1, .hd = 24, .vd = 8, .apart = true});
}

// Queries after cached keys, as in decoding; and keys that no query sees.
TEST_P(Attention, MatchesReferenceForQueriesAfterACache) {
  for (const auto& [queries, keys, offset] : {std::array<Index, 3>{1, 1, 0},
                                              {1, 40, 39},
                                              {1, 300, 299},
                                              {7, 90, 83},
                                              {64, 300, 236},
                                              {100, 257, 157},
                                              {5, 60, 10},
                                              {300, 600, 100},
                                              {130, 700, 570}})
    for (const auto& [causal, window] : {std::pair<bool, Index>{true, 0}, {true, 25}, {false, 0}, {true, 1}})
      check({.B = 2,
             .S = queries,
             .H = 4,
             .K = 2,
             .hd = 16,
             .causal = causal,
             .window = window,
             .keys = keys,
             .offset = offset,
             .apart = true});
}

// Sequences of different lengths in one cache: with one query each,
// as in decoding, and with several.
TEST_P(Attention, MatchesReferenceForCachesOfUnequalLengths) {
  for (Index queries : {1, 9})
    for (const auto& [offset, fewer] : {std::pair<Index, Index>{0, 0}, {6, 3}, {63, 31}, {64, 32}, {300, 117}})
      for (const auto& [H, K, hd, vd] : {std::array<Index, 4>{4, 2, 16, 16}, {3, 3, 5, 7}, {6, 1, 72, 33}})
        for (const auto& [window, softcap] : {std::pair<Index, float>{0, 0.0f}, {20, 0.0f}, {100, 2.0f}})
          check({.B = 3,
                 .S = queries,
                 .H = H,
                 .K = K,
                 .hd = hd,
                 .window = window,
                 .softcap = softcap,
                 .vd = vd,
                 .keys = 320,
                 .offset = offset,
                 .apart = true,
                 .fewer = fewer});
  check({.B = 2, .S = 1, .H = 2, .K = 1, .hd = 8, .keys = 80, .offset = 75, .document = 30, .apart = true, .fewer = 9});
  // With learned biases and sinks, and with patterns of the positions within each sequence.
  for (Index queries : {1, 9})
    for (const auto& [offset, fewer] : {std::pair<Index, Index>{6, 3}, {300, 117}})
      for (const SparsePattern& sparse :
           {SparsePattern{}, SparsePattern::strided(7), SparsePattern::strided(100), SparsePattern::fixed(8, 2),
            SparsePattern::fixed(90, 1), SparsePattern::longformer(5, 3), SparsePattern::longformer(20, 0),
            SparsePattern::longformer(40, 70)})
        for (const auto& [biases, sinks, window] :
             {std::tuple<Index, bool, Index>{0, false, 0}, {320, false, 50}, {337, true, 0}, {0, true, 50}})
          check({.B = 3,
                 .S = queries,
                 .H = 4,
                 .K = 2,
                 .hd = 16,
                 .window = window,
                 .vd = 24,
                 .keys = 320,
                 .offset = offset,
                 .apart = true,
                 .fewer = fewer,
                 .sparse = sparse,
                 .biases = biases,
                 .sinks = sinks});
  // Enough keys to be split into ranges. Some sequences do not see all ranges.
  for (Index queries : {1, 8})
    for (const auto& [biases, sinks, window] :
         {std::tuple<Index, bool, Index>{0, false, 0}, {1100, true, 300}, {0, true, 0}, {1111, false, 0}})
      for (const SparsePattern& sparse : {SparsePattern{}, SparsePattern::longformer(30, 5)})
        check({.B = 3,
               .S = queries,
               .H = 4,
               .K = 2,
               .hd = 24,
               .window = window,
               .softcap = biases > 0 ? 0.0f : 2.0f,
               .vd = 16,
               .keys = 1100,
               .offset = 1030,
               .apart = true,
               .fewer = 500,
               .sparse = sparse,
               .biases = biases,
               .sinks = sinks});
  check({.B = 1, .S = 2, .H = 2, .K = 1, .hd = 8, .keys = 8500, .offset = 8490, .apart = true, .fewer = 0});
  check({.B = 2,
         .S = 1,
         .H = 2,
         .K = 1,
         .hd = 8,
         .keys = 800,
         .offset = 770,
         .document = 400,
         .apart = true,
         .fewer = 9});
  // Sinks with all the weight or none of it, for several numbers of blocks.
  for (Index offset : {50, 300})
    check({.B = 2,
           .S = 1,
           .H = 4,
           .K = 2,
           .hd = 16,
           .keys = 320,
           .offset = offset,
           .apart = true,
           .fewer = 20,
           .sinks = true},
          6.0f);
  EXPECT_TRUE(run({.B = 0, .S = 1, .H = 2, .K = 1, .hd = 4, .keys = 5, .fewer = 0}, {}).out.empty());
}

// Heads wider than those of training, such as the latents that generation reads.
TEST_P(Attention, MatchesReferenceForWideHeadsOfACache) {
  for (const auto& [hd, vd] : {std::pair<Index, Index>{576, 512}, {257, 31}, {40, 300}, {321, 320}})
    for (const auto& [queries, offset, fewer] :
         {std::array<Index, 3>{1, 0, 0}, {1, 150, 60}, {5, 64, 31}, {20, 130, 7}})
      for (const auto& [window, softcap] : {std::pair<Index, float>{0, 0.0f}, {70, 2.0f}})
        check({.B = 2,
               .S = queries,
               .H = 6,
               .K = window > 0 ? 2 : 1,
               .hd = hd,
               .window = window,
               .softcap = softcap,
               .vd = vd,
               .keys = 160,
               .offset = offset,
               .apart = true,
               .fewer = fewer});
  const Case learned{.B = 2, .S = 3, .H = 2, .K = 1, .hd = 300, .keys = 150, .offset = 140, .apart = true, .fewer = 90};
  Case biased = learned, sparse = learned;
  biased.biases = 150;
  biased.sinks = sparse.sinks = true;
  sparse.sparse = SparsePattern::longformer(20, 3);
  check(biased);
  check(sparse);
}

// Values may be the last columns of their keys.
TEST_P(Attention, ReadsValuesFromColumnsOfKeys) {
  for (const auto& [hd, vd] : {std::pair<Index, Index>{24, 16}, {13, 7}, {300, 264}}) {
    Case c{.B = 2, .S = 1, .H = 3, .K = 1, .hd = hd, .vd = vd, .keys = 90, .offset = 80, .apart = true, .fewer = 30};
    SCOPED_TRACE(testing::Message() << c);
    Inputs<float> x = random_inputs(c);
    for (Index t = 0; t < c.B * c.keys; ++t) std::copy_n(x.k.begin() + t * hd + hd - vd, vd, x.v.begin() + t * vd);
    const Result alone = run(c, x);
    const auto tensor = [&](Shape shape, const std::vector<float>& values) {
      const Tensor exact = device->tensor(shape);
      Tensor rounded = device->tensor(shape, dtype());
      device->to_device(values.data(), exact);
      ops::run(*device, ops::Convert{.x = exact, .y = rounded});
      return rounded;
    };
    const Tensor q = tensor({c.B, 1, c.H, hd}, x.q), k = tensor({c.B, c.keys, 1, hd}, x.k),
                 out = device->tensor({c.B, 1, c.H, vd}, dtype()), exact = device->tensor({c.B, 1, c.H, vd}),
                 lse = device->tensor({c.B, c.H, 1}), offsets = device->tensor({c.B}, DType::i32);
    std::vector<std::int32_t> host;
    for (Index b = 0; b < c.B; ++b) host.push_back(static_cast<std::int32_t>(c.offset_of(b)));
    device->to_device(host.data(), offsets);
    const Heads keys = k.view();
    ops::run(*device, ops::AttentionForward{.q = q.view(),
                                            .k = keys,
                                            .v = keys.columns(hd - vd, vd),
                                            .desc = c.desc({}, offsets.view()),
                                            .out = out,
                                            .lse = lse});
    ops::run(*device, ops::Convert{.x = out, .y = exact});
    std::vector<float> found(static_cast<std::size_t>(exact.shape().elements()));
    device->to_host(exact, found.data());
    EXPECT_EQ(found, alone.out);
  }
}

// A sequence of a batch is bitwise the sequence alone, for any number of threads and sequences.
TEST_P(Attention, DecodesABatchBitwiseLikeSingleSequences) {
  Case plain{.B = 3, .S = 1, .H = 4, .K = 2, .hd = 16, .keys = 400, .offset = 399, .apart = true, .fewer = 130};
  Case learned = plain, longformer = plain;
  learned.biases = 400;
  learned.sinks = longformer.sinks = true;
  longformer.sparse = SparsePattern::longformer(40, 3);
  Case longer = learned;
  longer.keys = longer.biases = 1000;
  longer.offset = 900;
  for (const Case& batch : {plain, learned, longformer, longer}) {
    SCOPED_TRACE(testing::Message() << batch);
    const Inputs<float> x = random_inputs(batch);
    const Result whole = run(batch, x);
    for (int threads : {1, 3}) EXPECT_TRUE(run(batch, x, threads) == whole) << threads << " threads";
    for (Index b = 0; b < batch.B; ++b) {
      Case alone = batch;
      alone.B = 1;
      alone.offset = batch.offset_of(b);
      const auto slice = [b](const std::vector<float>& v) {
        const auto size = std::ssize(v) / 3;
        return std::vector<float>(v.begin() + b * size, v.begin() + (b + 1) * size);
      };
      const Result one = run(alone, {slice(x.q), slice(x.k), slice(x.v), slice(x.dout), x.bias, x.sinks});
      EXPECT_EQ(one.out, slice(whole.out));
      EXPECT_EQ(one.lse, slice(whole.lse));
    }
  }
}

// A row of a longer call is bitwise the row computed alone after its keys. Decoding relies on it.
TEST_P(Attention, DecodesARowBitwiseLikeTheSequence) {
  for (const SparsePattern& sparse :
       {SparsePattern{}, SparsePattern::strided(5), SparsePattern::fixed(8, 2), SparsePattern::longformer(9, 3)})
    for (const auto& [biases, sinks] : {std::pair<Index, bool>{0, false}, {70, true}}) {
      const Case whole{
          .B = 1, .S = 70, .H = 4, .K = 2, .hd = 16, .apart = true, .sparse = sparse, .biases = biases, .sinks = sinks};
      SCOPED_TRACE(testing::Message() << whole);
      const Inputs<float> x = random_inputs(whole);
      const Result all = run(whole, x);
      for (Index at : {0, 1, 13, 14, 31, 69}) {
        Case row = whole;
        row.S = 1;
        row.keys = at + 1;
        row.offset = at;
        const auto slice = [](const std::vector<float>& v, Index begin, Index end) {
          return std::vector<float>(v.begin() + begin, v.begin() + end);
        };
        const Index q = 4 * 16, kv = 2 * 16;
        const Result alone =
            run(row, {slice(x.q, at * q, (at + 1) * q), slice(x.k, 0, (at + 1) * kv), slice(x.v, 0, (at + 1) * kv),
                      slice(x.dout, at * q, (at + 1) * q), x.bias, x.sinks});
        EXPECT_EQ(alone.out, slice(all.out, at * q, (at + 1) * q)) << "row " << at;
      }
    }
}

// Documents in one sequence do not see each other, nor keys before the window.
TEST_P(Attention, SeparatesDocuments) {
  for (Index S : {1, 20, 130, 300})
    for (Index document : {1, 5, 50, 97, 400})
      for (const auto& [causal, window] : {std::pair<bool, Index>{true, 0}, {true, 17}, {false, 0}, {false, 17}})
        check({.B = 2, .S = S, .H = 2, .K = 1, .hd = 8, .causal = causal, .window = window, .document = document});
  check({.B = 3, .S = 40, .H = 2, .K = 2, .hd = 8, .keys = 140, .offset = 100, .document = 30, .apart = true});
}

// Learned biases of attention.
TEST_P(Attention, MatchesReferenceWithBiasesByDistance) {
  for (Index S : {1, 20, 67, 130, 300})
    for (const auto& [H, K] : {std::pair<Index, Index>{3, 3}, {4, 2}})
      for (Index window : {0, 1, 17})
        check({.B = 2, .S = S, .H = H, .K = K, .hd = 16, .window = window, .biases = S + (S % 2) * 5});
  for (const auto& [queries, keys, offset] :
       {std::array<Index, 3>{1, 40, 39}, {1, 300, 299}, {64, 300, 236}, {100, 257, 150}, {130, 400, 100}})
    check({.B = 2,
           .S = queries,
           .H = 4,
           .K = 2,
           .hd = 8,
           .vd = 24,
           .keys = keys,
           .offset = offset,
           .apart = true,
           .biases = offset + queries + 3});
  check({.B = 2, .S = 150, .H = 2, .K = 1, .hd = 8, .document = 40, .biases = 150});
  // Biases of keys on both sides, also with more of them than distances, lengths and windows.
  for (Index S : {1, 5, 70, 131}) {
    check({.B = 2, .S = S, .H = 4, .K = 2, .hd = 16, .causal = false, .biases = 2 * S - 1});
    check({.B = 2, .S = S, .H = 2, .K = 1, .hd = 8, .causal = false, .window = 9, .biases = 2 * S + 5});
  }
  check({.B = 3, .S = 70, .H = 2, .K = 2, .hd = 16, .causal = false, .biases = 139, .sinks = true, .shorter = 20});
  check({.B = 2, .S = 75, .H = 2, .K = 1, .hd = 8, .causal = false, .document = 20, .biases = 151});
  for (Index hd : {5, 96, 192}) check({.B = 1, .S = 40, .H = 2, .K = 1, .hd = hd, .biases = 40});
}

TEST_P(Attention, MatchesReferenceWithSinks) {
  for (Index S : {1, 20, 130, 300})
    for (Index window : {0, 1, 17})
      for (float softcap : {0.0f, 2.0f})
        check({.B = 2, .S = S, .H = 4, .K = 2, .hd = 16, .window = window, .softcap = softcap, .sinks = true});
  check({.B = 2, .S = 64, .H = 2, .K = 2, .hd = 16, .causal = false, .sinks = true});
  check({.B = 2, .S = 30, .H = 2, .K = 1, .hd = 8, .vd = 24, .keys = 300, .offset = 260, .apart = true, .sinks = true});
  check({.B = 2, .S = 150, .H = 2, .K = 1, .hd = 8, .document = 40, .biases = 150, .sinks = true});
  check({.B = 1, .S = 40, .H = 1, .K = 1, .hd = 16, .sinks = true}, dtype() == DType::bf16 ? 12.0f : 20.0f);
}

// Padded sequences of an encoder, read by itself and by a decoder.
TEST_P(Attention, MatchesReferenceForKeysOfUnequalLengths) {
  for (Index hd : {8, 96, 192}) check({.B = 2, .S = 70, .H = 2, .K = 1, .hd = hd, .causal = false, .shorter = 33});
  check({.B = 2, .S = 300, .H = 2, .K = 1, .hd = 8, .causal = false, .softcap = 2, .sinks = true, .shorter = 171});
  for (Index S : {1, 20})
    check({.B = 3, .S = S, .H = 4, .K = 2, .hd = 16, .causal = false, .vd = 24, .keys = 150, .shorter = 74});
}

// The second sequence has no keys: its results are undefined, and change nothing else.
TEST_P(Attention, ComputesBesideASequenceWithoutKeys) {
  constexpr Index B = 2, S = 21, H = 2, hd = 16;
  const auto out_of = [&](std::int32_t second) {
    const Tensor qkv = device->tensor({B, S, 3 * H, hd}, dtype()), out = device->tensor({B, S, H, hd}, dtype()),
                 lse = device->tensor({B, H, S}), key_lengths = device->tensor({B}, DType::i32);
    const std::vector<float> values = random_operand(B * S * 3 * H * hd, 7);
    const Tensor exact = device->tensor(qkv.view().shape());
    device->to_device(values.data(), exact);
    ops::run(*device, ops::Convert{.x = exact, .y = qkv});
    const std::int32_t lengths[] = {S - 2, second};
    device->to_device(lengths, key_lengths);
    ops::run(*device, ops::AttentionForward{.q = heads_of(qkv.view(), 0, H),
                                            .k = heads_of(qkv.view(), H, H),
                                            .v = heads_of(qkv.view(), 2 * H, H),
                                            .desc = {1, 0, {false, 0, 0, {}, {}, {}, key_lengths}, {}, {}},
                                            .out = out,
                                            .lse = lse});
    std::vector<std::byte> bytes(static_cast<std::size_t>(out.view().size_bytes()));
    device->to_host(out, bytes.data());
    bytes.resize(bytes.size() / B);
    return bytes;
  };
  EXPECT_TRUE(out_of(0) == out_of(S));
}

TEST_P(Attention, MatchesReferenceForSparsePatterns) {
  for (const SparsePattern& sparse :
       {SparsePattern::strided(1), SparsePattern::strided(7), SparsePattern::strided(64), SparsePattern::strided(1000),
        SparsePattern::fixed(1, 1), SparsePattern::fixed(8, 1), SparsePattern::fixed(32, 5), SparsePattern::fixed(7, 7),
        SparsePattern::fixed(9, 0), SparsePattern::longformer(1, 1), SparsePattern::longformer(17, 3),
        SparsePattern::longformer(40, 100), SparsePattern::longformer(5, 0),
        SparsePattern{.local = 3, .block = 16, .summary = 2, .global = 5}, SparsePattern{.stride = 6}}) {
    for (Index S : {1, 130}) check({.B = 2, .S = S, .H = 2, .K = 1, .hd = 8, .sparse = sparse});
    check({.B = 2, .S = 100, .H = 2, .K = 2, .hd = 8, .window = 20, .softcap = 3, .sparse = sparse});
    check({.B = 2, .S = 70, .H = 2, .K = 1, .hd = 8, .keys = 560, .offset = 480, .apart = true, .sparse = sparse});
    check({.B = 1, .S = 300, .H = 2, .K = 1, .hd = 8, .document = 110, .sparse = sparse, .biases = 300, .sinks = true});
  }
  // Whole blocks without visible keys.
  for (const SparsePattern& sparse :
       {SparsePattern::longformer(40, 3), SparsePattern::longformer(30, 0), SparsePattern::longformer(5, 300),
        SparsePattern::strided(50), SparsePattern::fixed(64, 3)}) {
    check({.B = 1, .S = 900, .H = 1, .K = 1, .hd = 8, .sparse = sparse});
    check({.B = 1, .S = 900, .H = 1, .K = 1, .hd = 8, .window = 400, .sparse = sparse, .biases = 900});
  }
}

// Windows on both sides, and first positions that see all others and are seen by them.
TEST_P(Attention, MatchesReferenceForSparsePatternsOnBothSides) {
  for (const SparsePattern& sparse : {SparsePattern::longformer(1, 1), SparsePattern::longformer(17, 3),
                                      SparsePattern::longformer(40, 100), SparsePattern::longformer(1000, 2)}) {
    for (Index S : {1, 130, 900}) check({.B = 2, .S = S, .H = 2, .K = 1, .hd = 8, .causal = false, .sparse = sparse});
    check({.B = 1, .S = 100, .H = 2, .K = 2, .hd = 8, .causal = false, .softcap = 3, .sparse = sparse, .sinks = true});
    for (Index document : {30, 110, 280})
      check({.B = 2, .S = 600, .H = 2, .K = 1, .hd = 8, .causal = false, .document = document, .sparse = sparse});
  }
}

// Some cases have more threads than kv heads: several threads share the blocks of one kv head.
TEST_P(Attention, IsBitwiseEqualForAnyNumberOfThreads) {
  for (const Case& c :
       {Case{2, 300, 4, 2, 16}, Case{1, 500, 2, 1, 24, true, 250}, Case{1, 300, 3, 1, 8, false, 40},
        Case{1, 700, 1, 1, 8},
        Case{.B = 1, .S = 300, .H = 2, .K = 1, .hd = 8, .vd = 24, .keys = 500, .offset = 150, .document = 60},
        Case{.B = 2, .S = 600, .H = 3, .K = 1, .hd = 8, .biases = 600, .sinks = true},
        Case{.B = 2, .S = 300, .H = 2, .K = 1, .hd = 8, .causal = false, .shorter = 171},
        Case{.B = 1, .S = 600, .H = 2, .K = 1, .hd = 8, .sparse = SparsePattern::longformer(40, 3)},
        Case{.B = 1,
        .S = 600,
        .H = 2,
        .K = 1,
        .hd = 8,
        .causal = false,
        .document = 270,
        .sparse = SparsePattern::longformer(40, 3)}}) {
    SCOPED_TRACE(testing::Message() << c);
    const Inputs<float> x = random_inputs(c);
    const Result one = run(c, x, 1);
    for (int threads : {2, 3, 8}) EXPECT_TRUE(run(c, x, threads) == one) << threads << " threads";
  }
}

TEST_P(Attention, ComputesABatchBitwiseLikeSingleSequences) {
  const Case batch{3, 230, 4, 2, 16}, alone{1, 230, 4, 2, 16};
  const Inputs<float> x = random_inputs(batch);
  const Result whole = run(batch, x);
  for (Index b = 0; b < batch.B; ++b) {
    const auto slice = [b](const std::vector<float>& v) {
      const auto size = std::ssize(v) / 3;
      return std::vector<float>(v.begin() + b * size, v.begin() + (b + 1) * size);
    };
    EXPECT_TRUE(
        (run(alone, {slice(x.q), slice(x.k), slice(x.v), slice(x.dout), {}, {}}) ==
         Result{slice(whole.out), slice(whole.lse), slice(whole.dq), slice(whole.dk), slice(whole.dv), {}, {}}));
  }
}

TEST_P(Attention, IgnoresKeysAfterACausalRow) {
  const Case longer{1, 300, 2, 1, 16}, shorter{1, 111, 2, 1, 16};
  const Inputs<float> x = random_inputs(longer);
  const Result all = run(longer, x);
  const auto slice = [](const std::vector<float>& v, Index size) {
    return std::vector<float>(v.begin(), v.begin() + size);
  };
  const Result prefix = run(shorter, {slice(x.q, shorter.q_size()),
                                      slice(x.k, shorter.k_size()),
                                      slice(x.v, shorter.v_size()),
                                      slice(x.dout, shorter.out_size()),
                                      {},
                                      {}});
  EXPECT_EQ(std::memcmp(prefix.out.data(), all.out.data(), prefix.out.size() * sizeof(float)), 0);
}

// The memory layout of heads (adjacent or separate) changes only addresses.
TEST_P(Attention, IsBitwiseEqualForAnyHeadLayout) {
  Case c{.B = 2, .S = 130, .H = 4, .K = 2, .hd = 16, .biases = 130, .sinks = true};
  const Inputs<float> x = random_inputs(c);
  const Result together = run(c, x);
  c.apart = true;
  EXPECT_TRUE(run(c, x) == together);
}

}  // namespace
}  // namespace sy::test
