// Reference of the whole model and its training loss: plain loops in double precision. An
// encoder-decoder computes its encoder first, then its decoder.
//
// It is written from the formulas of the design, not from src/model. Forward and backward of the
// layers are compared with it. One rank, one micro-batch.
#pragma once

#include <map>
#include <string>

#include "src/config.h"
#include "src/model/rope.h"
#include "src/model/router.h"
#include "src/numerics/reference/all.h"

namespace sy::reference {

using Parameters = std::map<std::string, Numbers>;

// Decisions of the routers. Finite differences keep them, because the loss is smooth only between
// decisions.
struct Decision {
  Numbers experts, dispatch_mask;  // [T, k]
};

struct ModelLoss {
  // Terms of the loss, with their factors.
  double cross_entropy = 0, aux = 0, router_z = 0, output_z = 0;
  double mtp = 0;       // of multi-token prediction
  double mtp_mean = 0;  // mean over tokens and modules, without the factor
  // Of the indexers, with its factor: a mean over tokens, and a sum over indexers. It trains these
  // alone, so it is no part of the total.
  double indexer = 0;
  double total() const { return cross_entropy + aux + router_z + output_z + mtp; }
};

class Model {
 public:
  Model(const Config& config, Index vocab, Index sequences, std::vector<double> ids, std::vector<double> targets)
      : c_(config),
        V_(vocab),
        B_(sequences),
        S_(config.decoder_length()),
        ids_(std::move(ids)),
        targets_(std::move(targets)) {}

  // Ids of the encoder of an encoder-decoder, [B * its length]; -1 is padding. S is then the length
  // of the decoder.
  void set_encoder_ids(std::vector<double> ids) { encoder_ids_ = std::move(ids); }

  // Ends of visible prefixes in a decoder, [B * S]. Every sequence is one document.
  void set_prefix_ends(std::vector<Index> ends) { prefix_ends_ = std::move(ends); }

  // frozen: follows the recorded decisions. Otherwise decides again, and records the decisions.
  ModelLoss loss(const Parameters& p, bool frozen) {
    ModelLoss out;
    if (c_.stacks.empty()) return add_loss(p, frozen, out, 0), out;
    Model encoder(c_.of_stack(0), V_, B_, encoder_ids_, {}), decoder(c_.of_stack(1), V_, B_, ids_, targets_);
    const auto moe = static_cast<std::ptrdiff_t>(std::min(encoder_decisions_, decisions_.size()));
    encoder.evaluated_moments_ = decoder.evaluated_moments_ = evaluated_moments_;
    encoder.prefix_ = "encoder.";
    encoder.decisions_.assign(decisions_.begin(), decisions_.begin() + moe);
    decoder.prefix_ = "decoder.";
    decoder.decisions_.assign(decisions_.begin() + moe, decisions_.end());
    decoder.encoded_ = encoder.add_loss(p, frozen, out, 0);
    decoder.encoder_lengths_ = encoder.lengths();
    decoder.encoder_length_ = encoder.S_;
    decoder.add_loss(p, frozen, out, 0);
    encoder_decisions_ = encoder.decisions_.size();
    decisions_ = encoder.decisions_;
    decisions_.insert(decisions_.end(), decoder.decisions_.begin(), decoder.decisions_.end());
    column_moments_ = encoder.column_moments_;
    column_moments_.merge(decoder.column_moments_);
    return out;
  }

  // Moments of the input of each batch norm in the last call of loss(), by name of the norm.
  const std::map<std::string, ColumnMoments>& moments_of_batch_norms() const { return column_moments_; }
  // From now on batch norms use these moments, as in evaluation.
  void set_moments_of_batch_norms(std::map<std::string, ColumnMoments> moments) {
    evaluated_moments_ = std::move(moments);
  }

  const std::vector<Decision>& decisions() const { return decisions_; }

 private:
  // Adds the terms of the loss to `out`. Returns the final norm of the last layer. Without targets,
  // there is no output.
  Numbers add_loss(const Parameters& p, bool frozen, ModelLoss& out, std::size_t moe) {
    const auto& m = c_.model;
    frozen_ = frozen;
    if (!frozen) selections_.clear();
    next_selection_ = 0;
    divergence_ = 0;
    double tokens = 0;
    for (double t : targets_) tokens += t >= 0;
    Numbers x = embedded(p, ids_), second = x;  // the second stream of reversible layers
    Together together{Numbers(c_.moe.experts), Numbers(c_.moe.experts), 0};
    const auto run_block = [&](Index layer) {
      const std::string prefix = prefix_ + "layers." + std::to_string(layer) + ".";
      const auto cross = [&](const Numbers& h) { return attend_to_encoder(p, m, prefix + "cross_attention.", h); };
      const auto attention = [&](const Numbers& h) { return attend(p, c_.model_of(layer), prefix + "attention.", h); };
      const auto feed = [&](const Numbers& h) {
        if (!c_.is_moe(layer)) return ffn(p, prefix + "mlp.", h, m.d_ff, c_.ffn_activation());
        if (!frozen) decisions_.resize(moe + 1);
        return experts(p, prefix + "moe.", h, decisions_[moe++], frozen, out, together);
      };
      if (c_.train.reversible) {
        const bool normless = layer == 0 && !m.first_norm;
        x = plus(x, normless ? scaled(attention(second))
                             : branch(p, prefix + "attention_norm", prefix + "attention_out_norm", second, attention));
        second = plus(second, branch(p, prefix + "ffn_norm", prefix + "ffn_out_norm", x, feed));
      } else if (m.parallel_block) {
        const Numbers a = branch(p, prefix + "attention_norm", prefix + "attention_out_norm", x, attention);
        const char* norm = m.parallel_norms == 1 ? "attention_norm" : "ffn_norm";
        x = plus(plus(x, a), branch(p, prefix + norm, prefix + "ffn_out_norm", x, feed));
      } else if (m.norm_position == NormPosition::post) {
        x = normed(p, prefix + "attention_norm", plus(x, scaled(attention(x))));
        if (!encoded_.empty()) x = normed(p, prefix + "cross_attention_norm", plus(x, scaled(cross(x))));
        x = normed(p, prefix + "ffn_norm", plus(x, scaled(feed(x))));
      } else if (m.norm_position == NormPosition::residual) {
        const Numbers a = normed(p, prefix + "attention_norm", x);
        const Numbers b = normed(p, prefix + "ffn_norm", plus(a, scaled(attention(a))));
        x = plus(b, scaled(feed(b)));
      } else {
        const bool normless = layer == 0 && !m.first_norm;
        x = plus(x, normless ? scaled(attention(x))
                             : branch(p, prefix + "attention_norm", prefix + "attention_out_norm", x, attention));
        if (!encoded_.empty())
          x = plus(x, branch(p, prefix + "cross_attention_norm", prefix + "cross_attention_out_norm", x, cross));
        x = plus(x, branch(p, prefix + "ffn_norm", prefix + "ffn_out_norm", x, feed));
      }
    };
    for (Index layer = 0; layer < m.layers; ++layer) run_block(layer);
    if (c_.train.reversible) {
      if (m.reversible_output == ReversibleOutput::concat) {
        x = both_streams(x, second);
      } else {
        x = plus(x, second);
        for (double& value : x) value /= 2;
      }
    }
    const bool has_norm = m.norm_position != NormPosition::post;
    if (has_norm) x = normed(p, prefix_ + "final_norm", x, m.output_width());
    const Numbers last = x;
    if (targets_.empty()) {
      add_joint_balancing(together, out);
      return last;
    }
    if (m.output_transform) {
      const Numbers h = linear(p, "output_transform", B_ * S_, m.d_model, x);
      x = normed(p, "output_transform_norm", ffn_activation({Activation::gelu, false}, B_ * S_, m.d_model, h, {}));
    }
    const Loss main = output_loss(p, x, targets_);
    for (std::size_t t = 0; t < targets_.size(); ++t) {
      out.cross_entropy += main.loss[t] / tokens;
      if (targets_[t] >= 0) out.output_z += c_.train.z_loss * main.lse[t] * main.lse[t] / tokens;
    }
    // DeepSeek-V3, equations 21 to 25, with the mean over all tokens that have a target.
    for (Index k = 1; k <= m.mtp_depth; ++k) {
      const Index block = m.layers + k - 1, T = B_ * S_;
      const std::string prefix = "layers." + std::to_string(block) + ".mtp.";
      Numbers ids(ids_), targets(targets_);
      for (Index t = 0; t < T; ++t) {
        const bool inside = t % S_ + k < S_;
        ids[t] = inside ? ids_[t + k] : targets_[t / S_ * S_ + S_ - 1];
        targets[t] = inside ? targets_[t + k] : -1;
      }
      // The main pass alone counts for the running averages of the embedding's batch norm.
      const auto of_main_pass = column_moments_;
      const Numbers embeddings = embedded(p, ids);
      column_moments_ = of_main_pass;
      x = plus(
          linear(p, prefix + "hidden_projection", T, m.d_model, normed(p, prefix + "hidden_norm", x)),
          linear(p, prefix + "embedding_projection", T, m.d_model, normed(p, prefix + "embedding_norm", embeddings)));
      run_block(block);
      if (has_norm) x = normed(p, prefix + "head_norm", x);
      const Loss loss = output_loss(p, x, targets);
      const double factor = c_.train.mtp_loss_weight / static_cast<double>(m.mtp_depth);
      for (Index t = 0; t < T; ++t) {
        out.mtp += factor * loss.loss[t] / tokens;
        out.mtp_mean += loss.loss[t] / tokens / static_cast<double>(m.mtp_depth);
        if (targets[t] >= 0) out.output_z += factor * c_.train.z_loss * loss.lse[t] * loss.lse[t] / tokens;
      }
    }
    add_joint_balancing(together, out);
    out.indexer += c_.train.indexer_loss_weight * divergence_ / static_cast<double>(B_ * S_);
    return last;
  }

  // Sums over all layers that share one load-balancing loss. [E] assignments and summed
  // probabilities of each expert; number of tokens.
  struct Together {
    Numbers counts, probability;
    double tokens;
  };

  void add_joint_balancing(const Together& together, ModelLoss& out) const {
    for (Index i = 0; i < c_.moe.experts; ++i)
      if (together.tokens > 0)
        out.aux += c_.moe.aux_loss * static_cast<double>(c_.moe.experts) / static_cast<double>(c_.moe.top_k) *
                   (together.counts[i] / together.tokens) * (together.probability[i] / together.tokens);
  }

  // Returns the number of tokens of each sequence before its padding.
  std::vector<Index> lengths() const {
    std::vector<Index> all;
    for (Index b = 0; b < B_; ++b) {
      Index n = S_;
      while (n > 1 && ids_[b * S_ + n - 1] < 0) --n;
      all.push_back(n);
    }
    return all;
  }

  Loss output_loss(const Parameters& p, const Numbers& x, const Numbers& targets) const {
    const auto& m = c_.model;
    const Index T = B_ * S_;
    Numbers logits =
        gemm({.b = true}, T, V_, m.output_width(), x, p.at(m.tie_embeddings ? "embedding.weight" : "output.weight"));
    if (m.output_bias) logits = bias_forward(T, V_, p.at("output.bias"), logits);
    for (double& z : logits) z *= m.logit_scale / m.width_ratio();
    const CrossEntropyDesc desc{0, static_cast<float>(m.output_softcap)};
    return cross_entropy_loss(1, cross_entropy_partial(desc, V_, logits, targets), targets);
  }

  static Numbers plus(Numbers a, const Numbers& b) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
  }

  // Rows of x, each followed by the row of y.
  Numbers both_streams(const Numbers& x, const Numbers& y) const {
    const Index D = c_.model.d_model;
    Numbers both;
    for (Index t = 0; t < B_ * S_; ++t)
      for (const Numbers* stream : {&x, &y})
        both.insert(both.end(), stream->begin() + t * D, stream->begin() + (t + 1) * D);
    return both;
  }

  static Numbers optional(const Parameters& p, const std::string& name) {
    const auto it = p.find(name);
    return it == p.end() ? Numbers{} : it->second;
  }

  // x W^T + b. x: [rows, in]
  static Numbers linear(const Parameters& p, const std::string& name, Index rows, Index in, const Numbers& x) {
    const Numbers& w = p.at(name + ".weight");
    const Index out = static_cast<Index>(w.size()) / in;
    return bias_forward(rows, out, p.count(name + ".bias") ? p.at(name + ".bias") : Numbers(out, 0.0),
                        gemm({.b = true}, rows, out, in, x, w));
  }

  float offset() const { return c_.model.norm_offset ? 1.0f : 0.0f; }

  // width: of the rows of x; 0 means model.d_model
  Numbers normed(const Parameters& p, const std::string& name, const Numbers& x, Index width = 0) const {
    if (c_.model.norm == NormKind::none) return x;
    if (width == 0) width = c_.model.d_model;
    if (c_.model.norm == NormKind::batchnorm) {
      Numbers mask;
      for (const double id : ids_) mask.push_back(id >= 0);
      const auto of_evaluation = evaluated_moments_.find(name);
      const ColumnMoments moments =
          of_evaluation == evaluated_moments_.end() ? column_moments(B_ * S_, width, x, mask) : of_evaluation->second;
      column_moments_[name] = moments;
      return batch_norm(moments, c_.model.norm_eps, x, p.at(name + ".weight"), optional(p, name + ".bias"));
    }
    return norm({c_.model.norm, static_cast<float>(c_.model.norm_eps), offset()}, B_ * S_, width, x,
                p.at(name + ".weight"), optional(p, name + ".bias"))
        .y;
  }

  // Output of a sublayer, with the norms around it, that is added to the residual stream x. For the
  // norm positions pre, output and both.
  template <class F>
  Numbers branch(const Parameters& p, const std::string& norm, const std::string& out_norm, const Numbers& x,
                 const F& f) const {
    const NormPosition position = c_.model.norm_position;
    const Numbers y = f(position == NormPosition::output ? x : normed(p, norm, x));
    return scaled(position == NormPosition::pre ? y : normed(p, out_norm, y));
  }
  Numbers scaled(Numbers y) const {
    for (double& value : y) value *= c_.model.residual_scale;
    return y;
  }

  // Number of separators before token t in its sequence. Targets are the ids of hidden tokens.
  Index segment_of(const Numbers& ids, Index t) const {
    Index segment = 0;
    for (Index i = t / S_ * S_; i < t; ++i)
      segment += (targets_[i] >= 0 ? targets_[i] : ids[i]) == static_cast<double>(c_.model.segment_token);
    return std::min(segment, c_.model.segments - 1);
  }

  Numbers embedded(const Parameters& p, const Numbers& ids) const {
    const auto& m = c_.model;
    const Index T = B_ * S_, D = m.d_model;
    Numbers rows = ids;
    for (double& id : rows) id = std::max(id, 0.0);  // padding
    Numbers x = embedding(V_, D, 0, rows, p.at("embedding.weight"));
    for (Index t = 0; t < T; ++t)
      for (Index i = 0; i < D; ++i) {
        double& of = x[t * D + i];
        if (m.scale_embedding) of *= std::sqrt(static_cast<double>(D));
        of *= m.embedding_scale;
        const double s = static_cast<double>(t % S_);
        if (m.segments > 0) of += p.at("segment.weight")[segment_of(ids, t) * D + i];
        if (m.position == Position::axial) {
          const Index columns = static_cast<Index>(m.axial_shape[1]), width = static_cast<Index>(m.axial_widths[0]);
          of += i < width ? p.at(prefix_ + "row_position.weight")[t % S_ / columns * width + i]
                          : p.at(prefix_ + "column_position.weight")[t % S_ % columns * (D - width) + i - width];
        }
        if (m.position == Position::learned) of += p.at(prefix_ + "position.weight")[(t % S_) * D + i];
        if (m.position == Position::sinusoidal) {
          const double angle = s / std::pow(10000.0, static_cast<double>(i - i % 2) / static_cast<double>(D));
          of += i % 2 ? std::cos(angle) : std::sin(angle);
        }
      }
    return m.embedding_norm ? normed(p, prefix_ + "embedding_norm", x) : x;
  }

  // m: [model] with the values of this layer.
  Numbers attend(const Parameters& p, const Config::Model& m, const std::string& prefix, const Numbers& x) const {
    const Index T = B_ * S_, D = m.d_model, H = m.heads, K = m.kv_heads, hd = m.head_dim, all = H + 2 * K;
    if (m.kv_lora_rank > 0) return attend_to_latent(p, m, prefix, x);
    if (m.attention == AttentionPattern::lsh) return attend_by_hash(p, m, prefix, x);
    Numbers qkv(T * all * hd);
    Index first = 0;
    for (const auto& [name, heads] : {std::pair{"q", H}, std::pair{"k", K}, std::pair{"v", K}}) {
      const Numbers y = linear(p, prefix + name, T, D, x);
      for (Index t = 0; t < T; ++t)
        for (Index i = 0; i < heads * hd; ++i) qkv[(t * all + first) * hd + i] = y[t * heads * hd + i];
      first += heads;
    }
    const auto [table, positions, half] = rotation_table(m, hd);
    if (m.qk_norm == QkNormKind::whole) {
      Numbers weight = p.at(prefix + "q_norm.weight");
      const Numbers& keys = p.at(prefix + "k_norm.weight");
      weight.insert(weight.end(), keys.begin(), keys.end());
      qkv = projection_qk_norm({H * hd, K * hd, H * hd, K * hd, static_cast<float>(m.norm_eps), offset()}, all * hd,
                               weight, {}, qkv);
    }
    if (m.clip_qkv > 0)
      for (double& value : qkv) value = std::clamp(value, -m.clip_qkv, m.clip_qkv);
    if (m.qk_norm == QkNormKind::head || m.qk_norm == QkNormKind::head_layernorm) {
      const bool layer = m.qk_norm == QkNormKind::head_layernorm;
      Numbers weight = p.at(prefix + "q_norm.weight");
      const Numbers& keys = p.at(prefix + "k_norm.weight");
      weight.insert(weight.end(), keys.begin(), keys.end());
      const bool after = m.qk_norm_after_rope;
      if (after && !table.empty()) qkv = rope(all, hd, H + K, half, positions, table, false, qkv, m.rope_pairs);
      qkv = head_qk_norm({H, K, static_cast<float>(m.norm_eps), m.rope_pairs, offset(),
                          layer ? NormKind::layernorm : NormKind::rmsnorm, layer},
                         all, hd, half, weight, positions, after ? Numbers{} : table, qkv)
                .y;
    } else if (!table.empty()) {
      qkv = rope(all, hd, H + K, half, positions, table, false, qkv, m.rope_pairs);
    }
    const auto heads_from = [&](Index from, Index heads) { return HeadsOf{qkv.data(), S_, all, from, heads, hd}; };
    Numbers out = weighted(p, m, prefix, heads_from(0, H), heads_from(H, K), heads_from(H + K, K),
                           1 / std::sqrt(static_cast<double>(hd)), x, x);
    if (m.global_projections) {
      const Numbers of_global = attend_globally(p, m, prefix + "global.", x);
      for (Index t = 0; t < T; ++t)
        if (t % S_ < m.global_tokens) std::copy_n(of_global.begin() + t * H * hd, H * hd, out.begin() + t * H * hd);
    }
    return linear(p, prefix + "out", T, H * hd, out);
  }

  // Attention of all tokens to all that are not padding, before the output's weights. Longformer's
  // global tokens have it.
  Numbers attend_globally(const Parameters& p, const Config::Model& m, const std::string& prefix,
                          const Numbers& x) const {
    const Index T = B_ * S_, H = m.heads, K = m.kv_heads, hd = m.head_dim;
    const Numbers q = linear(p, prefix + "q", T, m.d_model, x), k = linear(p, prefix + "k", T, m.d_model, x),
                  v = linear(p, prefix + "v", T, m.d_model, x);
    const double scale = m.attention_scale > 0 ? m.attention_scale : 1 / std::sqrt(static_cast<double>(hd));
    const std::vector<Index> visible = lengths();
    return attention(B_, {q.data(), S_, H, 0, H, hd}, {k.data(), S_, K, 0, K, hd}, {v.data(), S_, K, 0, K, hd},
                     static_cast<float>(scale), m.attention_softcap,
                     [&](Index b, Index, Index j) { return j < visible[b]; })
        .out;
  }

  // Kitaev et al., "Reformer", 2020, section 2. prefix: of the layer's attention, which keys the
  // rotations.
  Numbers attend_by_hash(const Parameters& p, const Config::Model& m, const std::string& prefix,
                         const Numbers& x) const {
    const Index T = B_ * S_, H = m.heads, hd = m.head_dim;
    const Numbers q = linear(p, prefix + "q", T, m.d_model, x), v = linear(p, prefix + "v", T, m.d_model, x);
    LshShape shape{B_,
                   S_,
                   H,
                   hd,
                   hd,
                   m.lsh_chunk_length,
                   m.lsh_chunks_before,
                   m.lsh_chunks_after,
                   c_.model.kind == ModelKind::decoder,
                   m.attention_scale > 0 ? m.attention_scale : 1.0,
                   1e-6 * static_cast<double>(hd)};
    Numbers order = lsh_positions(shape);
    if (S_ <= shape.chunk) {
      shape.before = shape.after = 0;
    } else if (m.lsh_buckets != std::vector<double>{1}) {
      if (!frozen_) {
        std::vector<Index> factors;
        Index columns = 0;
        for (const double factor : m.lsh_buckets) factors.push_back(whole(factor)), columns += whole(factor) / 2;
        Numbers rotations(H * hd * m.lsh_rounds * columns);
        const RandomStream random(c_.train.seed, prefix + "lsh");
        for (std::size_t i = 0; i < rotations.size(); ++i) rotations[i] = static_cast<float>(random.normal(i));
        selections_.push_back(lsh_order(shape, m.lsh_rounds, factors, S_, q, rotations));
      }
      order = selections_[next_selection_++];
    }
    return linear(p, prefix + "out", T, H * hd, lsh_attention(shape, q, v, order).out);
  }

  // DeepSeek-V2, equations 9 to 19 and 37 to 47. Queries and keys begin with their rotated
  // elements.
  Numbers attend_to_latent(const Parameters& p, const Config::Model& m, const std::string& prefix,
                           const Numbers& x) const {
    const Index T = B_ * S_, D = m.d_model, H = m.heads, own = m.head_dim, r = m.qk_rope_head_dim, width = own + r;
    const Index vd = m.v_head_dim > 0 ? m.v_head_dim : own;
    const NormDesc rms{NormKind::rmsnorm, static_cast<float>(m.latent_norm_eps > 0 ? m.latent_norm_eps : m.norm_eps)};
    const auto latent = [&](const std::string& name, Index w) {
      return norm(rms, T, w, linear(p, prefix + name + "_down", T, D, x), p.at(prefix + name + "_latent_norm.weight"),
                  {})
          .y;
    };
    const Numbers c = latent("kv", m.kv_lora_rank);
    const Numbers query_input = m.q_lora_rank > 0 ? latent("q", m.q_lora_rank) : x;
    Numbers q = linear(p, prefix + "q", T, static_cast<Index>(query_input.size()) / T, query_input);
    Numbers shared = linear(p, prefix + "k_rope", T, D, x);
    const auto [table, positions, half] = rotation_table(m, r);
    if (!table.empty()) {
      q = rope(H, width, H, half, positions, table, false, q, m.rope_pairs);
      shared = rope(1, r, 1, half, positions, table, false, shared, m.rope_pairs);
    }
    const Numbers of_heads = linear(p, prefix + "k", T, m.kv_lora_rank, c),
                  v = linear(p, prefix + "v", T, m.kv_lora_rank, c);
    Numbers k;
    for (Index t = 0; t < T; ++t)
      for (Index h = 0; h < H; ++h) {
        k.insert(k.end(), shared.begin() + t * r, shared.begin() + (t + 1) * r);
        k.insert(k.end(), of_heads.begin() + (t * H + h) * own, of_heads.begin() + (t * H + h + 1) * own);
      }
    return linear(p, prefix + "out", T, H * vd,
                  weighted(p, m, prefix, {q.data(), S_, H, 0, H, width}, {k.data(), S_, H, 0, H, width},
                           {v.data(), S_, H, 0, H, vd}, 1 / std::sqrt(static_cast<double>(width)), x, query_input));
  }

  // Rotation of `width` elements of a head: cos and sin of each pair at each position, and the
  // positions of the tokens.
  struct RotationTable {
    Numbers table, positions;
    Index half = 0;
  };
  RotationTable rotation_table(const Config::Model& m, Index width) const {
    RotationTable rotation;
    if (m.position != Position::rope) return rotation;
    const Index half = rotation.half = static_cast<Index>(static_cast<double>(width) * m.rope_fraction / 2);
    for (Index s = 0; s < S_; ++s)
      for (Index i = 0; i < half; ++i) {
        const double angle = static_cast<double>(s) /
                             std::pow(m.rope_theta, static_cast<double>(i) / static_cast<double>(half)) /
                             (m.rope_scaling == RopeScaling::linear ? m.rope_factor : 1.0);
        rotation.table.insert(rotation.table.end(), {std::cos(angle), std::sin(angle)});
      }
    // The other scalings are compared with golden data in test_rope.cpp.
    if (m.rope_scaling != RopeScaling::none && m.rope_scaling != RopeScaling::linear) {
      const std::vector<float> scaled = rope_table(*block_specs(c_).front().attention().rope, S_, S_);
      rotation.table.assign(scaled.begin(), scaled.end());
    }
    for (Index t = 0; t < B_ * S_; ++t) rotation.positions.push_back(static_cast<double>(t % S_));
    return rotation;
  }

  // Index scores [T, S] of the layer whose attention has the input x. query_input: of its queries.
  Numbers scores_of_indexer(const Parameters& p, const Config::Model& m, const std::string& prefix, const Numbers& x,
                            const Numbers& query_input) const {
    const Index T = B_ * S_, H = m.index_n_heads, w = m.index_head_dim;
    Numbers q = linear(p, prefix + "q", T, static_cast<Index>(query_input.size()) / T, query_input);
    Numbers k = norm({NormKind::layernorm, 1e-6f}, T, w, linear(p, prefix + "k", T, m.d_model, x),
                     p.at(prefix + "k_norm.weight"), p.at(prefix + "k_norm.bias"))
                    .y;
    const Numbers weights = linear(p, prefix + "head_weights", T, m.d_model, x);
    const auto [table, positions, half] = rotation_table(m, m.kv_lora_rank > 0 ? m.qk_rope_head_dim : m.head_dim);
    if (!table.empty()) {
      q = rope(H, w, H, half, positions, table, false, q, RopePairs::half);
      k = rope(1, w, 1, half, positions, table, false, k, RopePairs::half);
    }
    return index_scores({q, weights, k, H, w, S_, S_, 0, 1 / std::sqrt(static_cast<double>(H * w))},
                        [](Index, Index i, Index j) { return j <= i; });
  }

  // Attention weights times the values. scale: default if the configuration has no scale.
  // x, query_input: as of scores_of_indexer
  Numbers weighted(const Parameters& p, const Config::Model& m, const std::string& prefix, const HeadsOf& q,
                   const HeadsOf& k, const HeadsOf& v, double scale, const Numbers& x,
                   const Numbers& query_input) const {
    const bool indexed = m.attention == AttentionPattern::indexed;
    const Index topk = indexed && c_.train.indexer == IndexerStage::sparse ? m.index_topk : 0;
    Numbers index_scores, selected;  // [T, S], [T, topk]
    if (indexed) index_scores = scores_of_indexer(p, m, prefix + "indexer.", x, query_input);
    if (topk > 0) {
      if (!frozen_) selections_.push_back(topk_keys(S_, topk, index_scores));
      selected = selections_[next_selection_++];
    }
    const Index window = m.attention == AttentionPattern::longformer ? 0 : m.window;
    const bool encoder = c_.model.kind == ModelKind::encoder;
    const std::vector<Index> visible = lengths();
    const auto seen = [&](Index b, Index i, Index j) {
      if (encoder && i >= visible[b]) return i == j;  // padding: its output is not read
      const Index end = prefix_ends_.empty() ? i + 1 : std::max(i + 1, prefix_ends_[b * S_ + i]);
      if (j >= (encoder ? visible[b] : end)) return false;
      const auto row = selected.begin() + (b * S_ + i) * topk;
      if (topk > 0 && std::find(row, row + topk, static_cast<double>(j)) == row + topk) return false;
      return (window == 0 || std::abs(i - j) < window) && sees(pattern(m), i, j);
    };
    const AttentionLearned learned{distance_biases(p, m, prefix), optional(p, prefix + "sinks"),
                                   sees_both_sides() ? S_ - 1 : 0};
    scale = static_cast<float>(m.attention_scale > 0 ? m.attention_scale : scale);
    const Attention found = attention(B_, q, k, v, scale, m.attention_softcap, seen, nullptr, learned);
    if (indexed) {
      const Numbers sums = attention_key_sums(B_, q, k, found.lse, scale, m.attention_softcap, seen);
      divergence_ += indexer_loss(topk > 0 ? topk : S_, selected_values(S_, index_scores, selected, hidden_score),
                                  selected_values(S_, sums, selected, 0))
                         .loss;
    }
    return found.out;
  }

  bool sees_both_sides() const { return c_.model.kind == ModelKind::encoder || !prefix_ends_.empty(); }

  static SparsePattern pattern(const Config::Model& m) {
    switch (m.attention) {
      case AttentionPattern::strided:
        return {.local = m.attention_stride, .stride = m.attention_stride};
      case AttentionPattern::fixed:
        return {.block = m.attention_stride, .summary = m.attention_summary};
      case AttentionPattern::local:
        return {.block = m.local_chunk_length, .before = m.local_chunks_before};
      case AttentionPattern::longformer:
        return {.local = m.window, .global = m.global_tokens};
      default:
        return {};
    }
  }

  // Queries of x, keys and values of all outputs of the encoder that are not padding.
  Numbers attend_to_encoder(const Parameters& p, const Config::Model& m, const std::string& prefix,
                            const Numbers& x) const {
    const Index T = B_ * S_, D = m.d_model, H = m.heads, K = m.kv_heads, hd = m.head_dim, Se = encoder_length_;
    const Numbers q = linear(p, prefix + "q", T, D, x), k = linear(p, prefix + "k", B_ * Se, D, encoded_),
                  v = linear(p, prefix + "v", B_ * Se, D, encoded_);
    const double scale = m.attention_scale > 0 ? m.attention_scale : 1 / std::sqrt(static_cast<double>(hd));
    const Numbers out = attention(B_, {q.data(), S_, H, 0, H, hd}, {k.data(), Se, K, 0, K, hd},
                                  {v.data(), Se, K, 0, K, hd}, static_cast<float>(scale), m.attention_softcap,
                                  [&](Index b, Index, Index j) { return j < encoder_lengths_[b]; })
                            .out;
    return linear(p, prefix + "out", T, H * hd, out);
  }

  // [heads, distances]; empty without ALiBi and T5 biases. Distances begin at 1 - S if tokens see
  // later ones.
  Numbers distance_biases(const Parameters& p, const Config::Model& m, const std::string& prefix) const {
    Numbers bias;
    for (Index h = 0; h < m.heads; ++h)
      for (Index d = sees_both_sides() ? 1 - S_ : 0; d < S_; ++d) {
        if (m.position == Position::alibi)
          bias.push_back(-alibi_slope(h, m.heads) * static_cast<double>(std::abs(d)) * m.alibi_scale);
        if (m.position == Position::t5) {
          const Numbers& table = p.at((m.t5_shared ? prefix_ : prefix) + "relative_bias.weight");
          Config::Model of_side = m;
          if (sees_both_sides()) of_side.t5_buckets /= 2;
          bias.push_back(table[h * m.t5_buckets + t5_bucket(std::abs(d), of_side) + (d < 0 ? of_side.t5_buckets : 0)]);
        }
      }
    return bias;
  }
  // get_slopes of the ALiBi paper. If the number of heads is a power of two, slopes are a geometric
  // series. Otherwise they begin with the series of the next lower power of two. Every second slope
  // of twice that power follows.
  static double alibi_slope(Index head, Index heads) {
    Index power = 1;
    while (power * 2 <= heads) power *= 2;
    if (head < power) return std::pow(2.0, -8.0 * static_cast<double>(head + 1) / static_cast<double>(power));
    return std::pow(2.0, -4.0 * static_cast<double>(2 * (head - power) + 1) / static_cast<double>(power));
  }
  static Index t5_bucket(Index distance, const Config::Model& m) {
    const double exact = static_cast<double>(m.t5_buckets / 2), d = static_cast<double>(distance);
    if (d < exact) return distance;
    const double more = std::log(d / exact) / std::log(static_cast<double>(m.t5_max_distance) / exact);
    return std::min<Index>(m.t5_buckets - 1,
                           static_cast<Index>(exact + std::floor(more * (static_cast<double>(m.t5_buckets) - exact))));
  }

  Numbers ffn(const Parameters& p, const std::string& prefix, const Numbers& x, Index width,
              const FfnActivation& activation) const {
    const Index T = B_ * S_;
    const Numbers h = linear(p, prefix + "up", T, c_.model.d_model, x);
    if (activation.act == Activation::xielu)
      return linear(p, prefix + "down", T, width,
                    xielu(h, {p.at(prefix + "xielu.positive")[0], p.at(prefix + "xielu.negative")[0]}));
    return linear(p, prefix + "down", T, width, ffn_activation(activation, T, width, h, {}));
  }

  Numbers experts(const Parameters& p, const std::string& prefix, const Numbers& x, Decision& decision, bool frozen,
                  ModelLoss& out, Together& together) const {
    const auto& e = c_.moe;
    const Index T = B_ * S_, D = c_.model.d_model, E = e.experts, k = e.top_k, F = e.d_ff;
    const RouteDesc route{e.score,
                          static_cast<int>(k),
                          e.renormalizes(),
                          static_cast<float>(e.scale),
                          static_cast<int>(e.groups),
                          static_cast<int>(e.topk_groups),
                          e.group_score,
                          e.choice == Choice::noisy || e.choice == Choice::sampled,
                          e.aux_probability == AuxProbability::score};
    Numbers read = x;
    const RandomStream jitter(c_.train.seed, prefix + "router.jitter");
    if (e.jitter > 0)
      for (Index i = 0; i < T * D; ++i) read[i] *= 1 + e.jitter * (2 * jitter.uniform(i) - 1);
    Numbers logits = linear(p, prefix + "router", T, D, read);
    Numbers noise;
    if (e.learned_noise) {
      const RandomStream stream(c_.train.seed, prefix + "router.noise");
      const Numbers stddev = linear(p, prefix + "router.noise", T, D, read);
      for (Index i = 0; i < T * E; ++i) logits[i] += e.noise * stream.normal(i) * std::log1p(std::exp(stddev[i]));
    } else if (e.choice == Choice::balanced) {
      for (Index i = 0; i < T * E; ++i) noise.push_back(1e9 * static_cast<double>(E - (i % E + E - i / E % E) % E));
    } else if (e.choice != Choice::top) {
      const RandomStream stream(c_.train.seed, prefix + "router.noise");
      for (Index i = 0; i < T * E; ++i)
        noise.push_back(e.choice == Choice::noisy ? e.noise * stream.normal(i) : stream.gumbel(i));
    }
    if (!frozen) decision.experts = choose_experts(route, T, E, logits, {}, noise);
    for (Index t = 0; t < T; ++t)
      if (ids_[t] < 0) std::fill_n(decision.experts.begin() + t * k, k, -1.0);  // padding
    const Numbers g = route_weights(route, T, E, logits, decision.experts);
    if (!frozen) {
      const bool by_sequence = e.capacity_scope == CapacityScope::sequence;
      const Index limit =
          e.capacity_factor == 0
              ? 0
              : static_cast<Index>(std::ceil(e.capacity_factor * static_cast<double>(k) *
                                                 static_cast<double>(by_sequence ? S_ : T) / static_cast<double>(E) -
                                             1e-9));
      decision.dispatch_mask = apply_capacity({e.drop_order, limit}, by_sequence ? B_ : 1, T, k, decision.experts, g);
    }
    const Index scopes = e.aux_scope == AuxScope::sequence ? B_ : 1;
    const double n = static_cast<double>(T) / static_cast<double>(scopes);
    const RouteSums sums = route_sums(route, scopes, T, E, logits, decision.experts);
    if (e.aux_layers == AuxLayers::joint) {
      together.counts = plus(together.counts, sums.counts);
      together.probability = plus(together.probability, sums.probability);
      together.tokens += n;
    }
    for (Index i = 0; i < scopes * E && e.aux_layers == AuxLayers::each; ++i)
      out.aux += e.aux_loss * static_cast<double>(E) / static_cast<double>(k) * (sums.counts[i] / n) *
                 (sums.probability[i] / n) / static_cast<double>(scopes);
    out.router_z += e.z_loss * sums.z_squared / static_cast<double>(T);

    Numbers y(T * D, 0.0);
    const FfnActivation activation = c_.expert_activation();
    const Index num_projections = activation.gated ? 2 : 1;
    const Numbers &up = p.at(prefix + "experts.up.weight"), &down = p.at(prefix + "experts.down.weight");
    const Numbers up_bias = e.bias ? p.at(prefix + "experts.up.bias") : Numbers(E * num_projections * F, 0.0);
    const Numbers down_bias = e.bias ? p.at(prefix + "experts.down.bias") : Numbers(E * D, 0.0);
    for (Index a = 0; a < T * k; ++a) {
      if (decision.dispatch_mask[a] == 0) continue;
      const Index t = a / k, expert = whole(decision.experts[a]);
      const Numbers row(x.begin() + t * D, x.begin() + (t + 1) * D);
      const Numbers w1(up.begin() + expert * num_projections * F * D,
                       up.begin() + (expert + 1) * num_projections * F * D);
      const Numbers w2(down.begin() + expert * D * F, down.begin() + (expert + 1) * D * F);
      Numbers h = gemm({.b = true}, 1, num_projections * F, D, row, w1);
      for (Index i = 0; i < num_projections * F; ++i) h[i] += up_bias[expert * num_projections * F + i];
      const Numbers o = gemm({.b = true}, 1, D, F, ffn_activation(activation, 1, F, h, {}), w2);
      for (Index i = 0; i < D; ++i) y[t * D + i] += g[a] * (o[i] + down_bias[expert * D + i]);
    }
    if (e.shared_experts == 0) return y;
    Numbers shared = ffn(p, prefix + "shared.", x, e.shared_d_ff, activation);
    if (e.shared_gate) {
      const Numbers gate = linear(p, prefix + "shared_gate", T, D, x);
      for (Index i = 0; i < T * D; ++i) shared[i] *= sigmoid(gate[i / D]);
    }
    return plus(y, shared);
  }

  Config c_;
  Index V_, B_, S_;
  std::vector<double> ids_, targets_, encoder_ids_;
  std::vector<Index> prefix_ends_;
  std::vector<Decision> decisions_;
  // Keys that indexers selected, or tokens that a hash sorted, in the order of the layers, and the
  // next one of them. Finite differences keep them, too.
  mutable std::vector<Numbers> selections_;
  mutable std::size_t next_selection_ = 0;
  mutable double divergence_ = 0;  // sum of the losses of the indexers over tokens
  mutable std::map<std::string, ColumnMoments> column_moments_;
  std::map<std::string, ColumnMoments> evaluated_moments_;
  bool frozen_ = false;                // follows the recorded selections
  std::size_t encoder_decisions_ = 0;  // number of decisions_ of the encoder
  std::string prefix_;                 // of the stack's parameters
  // In a decoder that reads an encoder: the outputs of the encoder [B, encoder_length_, D], and the
  // number of visible ones of each sequence.
  Numbers encoded_;
  Index encoder_length_ = 0;
  std::vector<Index> encoder_lengths_;
};

}  // namespace sy::reference
