// The configuration keys of [model] and [moe].
#include "src/config/key_row.h"

namespace sy {

std::span<const Key> model_keys() {
  using Model = Config::Model;
  using Moe = Config::Moe;
  using enum ResumePolicy;
  static constexpr Key table[] = {
      row<&Model::kind>(
          "model.kind", {}, must_match,
          "decoder: a token sees itself and earlier ones; encoder: it sees tokens on both sides, and the model learns "
          "to predict hidden tokens (train.objective = masked); encoder_decoder: a decoder, each of whose layers also "
          "attends to the outputs of an encoder (Vaswani et al., 2017; T5). Its sections [encoder] and [decoder] "
          "replace keys of [model] and [moe] in one of both"),
      stack_row<&Model::layers>("model.layers", {1, 10000}, must_match,
                                "the number of layers (blocks). With model.kind = encoder_decoder, that of each stack "
                                "whose section does not set it; a run's config.ini has the sum of both"),
      row<&Model::mtp_depth>(
          "model.mtp_depth", {0, 16}, must_match,
          "the number of modules of multi-token prediction (DeepSeek-V3, 2024): while training, module k predicts "
          "the token k + 1 ahead with one more block. Evaluation and generation leave them out. 0: none"),
      row<&Model::pattern>(
          "model.pattern", {}, ignore,
          "the kinds of the layers in their order, as in local*5, global, which is repeated over the layers and "
          "cut where they end. Layers of kind local take the keys of [attention.local] in place of those of "
          "[model]. Empty: all layers are as [model] says"),
      row<&Model::d_model>("model.d_model", {1, 1 << 20}, must_match, "the width of the residual stream"),
      stack_row<&Model::heads>("model.heads", {1, 1 << 16}, must_match, "the number of query heads"),
      stack_row<&Model::kv_heads>(
          "model.kv_heads", {0, 1 << 16}, must_match,
          "the number of key and value heads. 0: as many as query heads (multi-head attention); 1: multi-query "
          "attention"),
      stack_row<&Model::head_dim>(
          "model.head_dim", {0, 1 << 16}, must_match,
          "the width of a head. 0: d_model / heads. With model.kv_lora_rank: of what a head's queries and keys "
          "have besides model.qk_rope_head_dim (qk_nope_head_dim)"),
      row<&Model::kv_lora_rank>(
          "model.kv_lora_rank", {0, 1 << 16}, must_match,
          "the width of the latent that all heads' keys and values are made of, in multi-head latent attention "
          "(DeepSeek-V2, 2024): generation keeps this latent and the rotated key alone. 0: there is no latent"),
      row<&Model::q_lora_rank>(
          "model.q_lora_rank", {0, 1 << 16}, must_match,
          "with model.kv_lora_rank, the width of the latent that queries are made of. 0: they are made of the "
          "attention's input"),
      row<&Model::qk_rope_head_dim>(
          "model.qk_rope_head_dim", {0, 1 << 16}, must_match,
          "with model.kv_lora_rank, the elements of each query, and of a key that all heads share, that rope "
          "rotates"),
      row<&Model::v_head_dim>("model.v_head_dim", {0, 1 << 16}, must_match,
                              "with model.kv_lora_rank, the width of a head's values. 0: model.head_dim"),
      row<&Model::latent_norm_eps>(
          "model.latent_norm_eps", {0, 1}, must_match,
          "with model.kv_lora_rank, what the rmsnorms of the latents add to the mean square. 0: model.norm_eps"),
      row<&Model::vocab>(
          "model.vocab", {0, 1 << 24}, report,
          "the number of rows of the embedding and of the output, at least the token ids that the data set knows; "
          "the others are never a target. 0: as many as these ids"),
      row<&Model::mask_token>(
          "model.mask_token", {-1, 1 << 24}, must_match,
          "with train.objective = masked, the id that stands for a hidden token. -1: that of the tokenizer's special "
          "token [MASK] or <mask>, or else the id after those of the data set, for which the model has one more row"),
      row<&Model::sentinels>(
          "model.sentinels", {0, 1 << 16}, must_match,
          "with train.objective = span_corruption, the model has this many ids after those of the data set, which stand "
          "for hidden spans: the last id for the first span (T5). 0: the tokenizer has them, as <extra_id_0> and so on"),
      row<&Model::sentinel_token>(
          "model.sentinel_token", {-1, 1 << 24}, must_match,
          "the id of the first span's sentinel; those of later spans descend from it. -1: model.sentinels tells it"),
      row<&Model::start_token>(
          "model.start_token", {-1, 1 << 24}, must_match,
          "the id with which a decoder's sequence begins in an encoder-decoder. -1: the id that ends documents, or 0 if "
          "the data set has none"),
      stack_row<&Model::d_ff>(
          "model.d_ff", {0, 1 << 24}, must_match,
          "the inner width of a dense FFN. 0: 8/3 d_model rounded up to a multiple of 64 where the FFN is gated, "
          "otherwise 4 d_model"),
      stack_row<&Model::seq_len>(
          "model.seq_len", {1, 1 << 28}, reorders_samples,
          "the number of positions in a training sequence. With model.kind = encoder_decoder, the "
          "tokens of text from which a sample is made; encoder.seq_len and decoder.seq_len are the "
          "positions of its two sequences, which follow from it if they are not set"),
      row<&Model::norm>(
          "model.norm", {}, must_match,
          "the kind of normalisation. batchnorm (Ioffe and Szegedy, 2015): of each element over all real tokens that "
          "a step computes at once, those of dp * train.micro_batch sequences; evaluation and generation "
          "use running averages of mean and variance. Results depend on this product, and the training of "
          "a decoder sees later tokens through it"),
      row<&Model::norm_eps>("model.norm_eps", {0, 1}, must_match,
                            "norms add this to the variance (rmsnorm: to the mean square) before they take its root"),
      row<&Model::norm_offset>(
          "model.norm_offset", {}, must_match,
          "true: norms, those of queries and keys too, multiply by 1 + their weight, which starts at 0 (Gemma, "
          "Nemotron)"),
      row<&Model::norm_position>(
          "model.norm_position", {}, must_match,
          "where a block normalises, f being attention or the FFN. pre: x + f(norm(x)); post: norm(x + f(x)), and "
          "there is no norm before the output; both: x + norm(f(norm(x))); output: x + norm(f(x)), with no norm of "
          "the input, in a parallel block neither; residual: norm(x) + f(norm(x))"),
      row<&Model::parallel_block>(
          "model.parallel_block", {}, must_match,
          "true: attention and FFN read the same input, x + attention(norm(x)) + ffn(norm(x)). false: the FFN "
          "reads what attention has added to"),
      row<&Model::parallel_norms>(
          "model.parallel_norms", {1, 2}, must_match,
          "with model.parallel_block, 1: attention and FFN read the same norm of the input (GPT-J, PaLM); 2: each "
          "has its own (GPT-NeoX)"),
      stack_row<&Model::ffn>(
          "model.ffn", {}, must_match,
          "the activation of dense FFNs, and of experts where moe.ffn is empty: relu, gelu, gelu_tanh, "
          "silu, relu2 or xielu, which has two learned parameters in each layer (Huang and Schlag, 2024) and "
          "is not for experts; or, gated, glu, reglu, geglu, geglu_tanh, swiglu or swiglu_clamped, which "
          "is (clamp(l, -c, c) + 1) * silu(min(x, c)) of up projection l and gate projection x, with c = "
          "model.ffn_clamp",
          ffn_values),
      stack_row<&Model::swish_beta>(
          "model.swish_beta", {0, 1000}, must_match,
          "in silu, swiglu and swiglu_clamped, silu(x) is x * sigmoid(swish_beta * x). 0: 1, and in swiglu_clamped "
          "1.702"),
      row<&Model::ffn_clamp>("model.ffn_clamp", {1e-3, no_upper_bound}, must_match,
                             "where swiglu_clamped cuts off what it gets"),
      row<&Model::bias>(
          "model.bias", {}, must_match,
          "what has biases. all: attention, dense FFNs, layernorm and batchnorm; attention: queries, keys, values and the "
          "output of attention; qkv: queries, keys and values alone; mlp: dense FFNs alone. true is all, and false "
          "none"),
      row<&Model::norm_bias>("model.norm_bias", {}, must_match,
                             "whether layernorm and batchnorm have a bias. auto: where model.bias is all"),
      kind_row<&Model::position>(
          "model.position", {}, must_match,
          "how the model knows where tokens stand. rope: attention rotates queries and keys by their positions; "
          "alibi: a score falls by a slope of its head for each token between (Press et al., 2022); t5: a score "
          "has a learned bias by head and bucket of distances (Raffel et al., 2020); learned: a vector of each "
          "position up to model.seq_len is added to the embedding; axial: the same, but the vector of position p joins "
          "row p / n and row p % n of two tables, of which the second has n rows (Reformer); sinusoidal: the same with sines and cosines of "
          "the position (Vaswani et al., 2017); none: it knows no more than the causal mask tells"),
      row<&Model::axial_shape>("model.axial_shape", {}, must_match,
                               "position = axial: the numbers of rows of both tables, whose product is at least "
                               "model.seq_len, as in 128, 512"),
      row<&Model::axial_widths>("model.axial_widths", {}, must_match,
                                "position = axial: the widths of both tables, whose sum is model.d_model"),
      kind_row<&Model::rope_theta>("model.rope_theta", {1e-3, no_upper_bound}, must_match,
                                   "the base of rope's frequencies"),
      kind_row<&Model::rope_fraction>(
          "model.rope_fraction", {1e-6, 1}, must_match,
          "rope rotates this part of each head, or of model.qk_rope_head_dim, above 0 and up to 1"),
      kind_row<&Model::rope_pairs>(
          "model.rope_pairs", {}, must_match,
          "which elements of a head rope rotates together. half: i and i + n of the first 2n; interleaved: 2i and "
          "2i + 1"),
      kind_row<&Model::rope_scaling>(
          "model.rope_scaling", {}, report,
          "how rope's frequencies are changed for sequences longer than those of an earlier training, "
          "model.rope_original_length. linear: all are divided by model.rope_factor; ntk: theta grows instead, so "
          "that the lowest frequency is divided by it; dynamic: the same as far as the length in use asks for it; "
          "llama3: low ones are divided; yarn: low ones are divided, and attention is sharpened; longrope: each is "
          "divided by a factor of its own. The length in use is model.seq_len in training, the window in "
          "evaluation and the text so far in generation"),
      kind_row<&Model::rope_factor>("model.rope_factor", {1, no_upper_bound}, report,
                                    "how many times as long as before model.rope_scaling makes sequences"),
      kind_row<&Model::rope_original_length>(
          "model.rope_original_length", {0, 1 << 28}, report,
          "the number of positions of the earlier training, which dynamic, llama3, yarn and longrope need"),
      kind_row<&Model::rope_low_frequency>(
          "model.rope_low_frequency", {1e-6, no_upper_bound}, report,
          "llama3 divides frequencies of fewer turns than this over the original length"),
      kind_row<&Model::rope_high_frequency>(
          "model.rope_high_frequency", {1e-6, no_upper_bound}, report,
          "llama3 leaves frequencies of more turns than this over the original length as they are"),
      kind_row<&Model::rope_beta_fast>(
          "model.rope_beta_fast", {1e-6, no_upper_bound}, report,
          "yarn leaves frequencies of more turns than this over the original length as they are"),
      kind_row<&Model::rope_beta_slow>("model.rope_beta_slow", {1e-6, no_upper_bound}, report,
                                       "yarn divides frequencies of fewer turns than this over the original length"),
      kind_row<&Model::rope_whole_dimensions>(
          "model.rope_whole_dimensions", {}, report,
          "true: yarn rounds the first and the last dimension of those between to whole ones"),
      kind_row<&Model::rope_attention_factor>(
          "model.rope_attention_factor", {0, no_upper_bound}, report,
          "rotated queries and keys are multiplied by this. 0: by what model.rope_scaling says, which is 0.1 "
          "ln(rope_factor) + 1 of yarn, sqrt(1 + ln(rope_factor) / ln(rope_original_length)) of longrope, "
          "otherwise 1"),
      kind_row<&Model::rope_short_factors>(
          "model.rope_short_factors", {}, report,
          "what longrope divides each frequency by in texts of up to model.rope_original_length tokens (training: "
          "of model.seq_len). Empty: the long ones for all texts"),
      kind_row<&Model::rope_long_factors>(
          "model.rope_long_factors", {}, report,
          "what longrope divides each frequency by in longer texts. Empty: the short ones for all texts. When a "
          "generated text passes model.rope_original_length, its keys are computed again"),
      kind_row<&Model::alibi_scale>(
          "model.alibi_scale", {0, no_upper_bound}, must_match,
          "with model.position = alibi, the slopes are multiplied by this (Falcon-RW: 1 / sqrt(head_dim))"),
      stack_row<&Model::t5_buckets>(
          "model.t5_buckets", {2, 1 << 16}, must_match,
          "the number of buckets of position = t5. Half of them are of one distance each, the others of ranges "
          "that grow"),
      stack_row<&Model::t5_max_distance>("model.t5_max_distance", {2, 1 << 28}, must_match,
                                         "from this distance on, all are in the last bucket of position = t5"),
      stack_row<&Model::t5_shared>("model.t5_shared", {}, must_match,
                                   "true: all layers of position = t5 have the same biases; false: each its own"),
      kind_row<&Model::attention>(
          "model.attention", {}, must_match,
          "which tokens a token sees. causal: itself and earlier ones, as many as model.window says; full: those on "
          "both sides, as many on each as model.window says (an encoder has this in place of causal); strided: the "
          "latest attention_stride ones, and before these every attention_stride-th; fixed: those of its own run "
          "of attention_stride tokens, and the last attention_summary ones of every run (Child et al., 2019); "
          "longformer: the latest window ones, and the first global_tokens of the sequence; in an encoder, window "
          "ones on each side, and the first global_tokens see all others (Beltagy et al., 2020); indexed: the "
          "index_topk ones for which a learned indexer has the largest scores (DeepSeek-V3.2, 2025; train.indexer); local: those of "
          "its own chunk of local_chunk_length tokens and of the local_chunks_before chunks before it, up to itself; "
          "lsh: those that a hash of queries and keys, which are one projection, sorts near it (Kitaev et al., "
          "\"Reformer\", 2020)"),
      kind_row<&Model::window>(
          "model.window", {0, no_upper_bound}, must_match,
          "a token sees this many tokens, itself and the latest before it, and in an encoder as many "
          "from itself on. 0: all"),
      kind_row<&Model::attention_stride>("model.attention_stride", {1, 1 << 28}, must_match,
                                         "the stride of attention = strided and of attention = fixed"),
      kind_row<&Model::attention_summary>(
          "model.attention_summary", {0, 1 << 28}, must_match,
          "attention = fixed: this many tokens at the end of each run are seen from all later ones"),
      kind_row<&Model::global_tokens>("model.global_tokens", {0, 1 << 28}, must_match,
                                      "attention = longformer: this many tokens at the start are seen from all others"),
      kind_row<&Model::global_projections>(
          "model.global_projections", {}, must_match,
          "attention = longformer in an encoder: true: the first global_tokens attend to all tokens by a second set of "
          "projections of queries, keys and values (Beltagy et al., 2020; LED)"),
      kind_row<&Model::index_n_heads>("model.index_n_heads", {1, 1 << 16}, must_match,
                                      "attention = indexed: the number of heads of the indexer"),
      kind_row<&Model::index_head_dim>(
          "model.index_head_dim", {1, 1 << 16}, must_match,
          "attention = indexed: the width of a head of the indexer, whose first elements RoPE rotates like those of "
          "attention"),
      kind_row<&Model::index_topk>("model.index_topk", {1, 1 << 28}, must_match,
                                   "attention = indexed: a token sees this many tokens, of itself and earlier ones"),
      kind_row<&Model::local_chunk_length>("model.local_chunk_length", {1, 1 << 28}, must_match,
                                           "attention = local: the number of tokens of a chunk"),
      kind_row<&Model::local_chunks_before>("model.local_chunks_before", {0, 1 << 20}, must_match,
                                            "attention = local: a token sees this many chunks before its own"),
      kind_row<&Model::lsh_chunk_length>(
          "model.lsh_chunk_length", {1, 1 << 28}, must_match,
          "attention = lsh: the number of tokens of a chunk of sorted tokens. It divides model.seq_len"),
      kind_row<&Model::lsh_chunks_before>(
          "model.lsh_chunks_before", {0, 1 << 20}, must_match,
          "attention = lsh: a token sees this many chunks of sorted tokens before its own"),
      kind_row<&Model::lsh_chunks_after>(
          "model.lsh_chunks_after", {0, 1 << 20}, must_match,
          "attention = lsh: a token sees this many chunks of sorted tokens after its own"),
      kind_row<&Model::lsh_rounds>(
          "model.lsh_rounds", {1, 1 << 10}, must_match,
          "attention = lsh: the number of rounds, each with a hash of its own; 1 with one bucket"),
      kind_row<&Model::lsh_buckets>(
          "model.lsh_buckets", {}, must_match,
          "attention = lsh: the number of buckets of a round, which is even and divides model.seq_len, or even factors "
          "of it with a comma between them, which make the hash cheaper. 1: tokens stay in their order. Empty: the "
          "largest power of two that is at most 2 * model.seq_len / lsh_chunk_length and divides model.seq_len"),
      kind_row<&Model::attention_sinks>(
          "model.attention_sinks", {}, must_match,
          "true: each head has a learned logit that takes part in its softmax and has no value, so that it may "
          "attend to nothing (gpt-oss)"),
      kind_row<&Model::qk_norm>(
          "model.qk_norm", {}, must_match,
          "norm of queries and keys. head: rmsnorm of each head by itself; whole: rmsnorm of the queries of all "
          "heads together, and of the keys (OLMo 2); head_layernorm: layernorm of each head, with a weight of its "
          "own and no bias (Command R+). true is head, and false none"),
      row<&Model::qk_norm_after_rope>(
          "model.qk_norm_after_rope", {}, must_match,
          "true: the norm of model.qk_norm, which must be one of each head, comes after RoPE (Hunyuan)"),
      kind_row<&Model::clip_qkv>(
          "model.clip_qkv", {0, no_upper_bound}, must_match,
          "queries, keys and values are limited to [-c, c] with c = model.clip_qkv, after qk_norm and before RoPE "
          "(OLMo, MPT). 0: no limit"),
      kind_row<&Model::attention_scale>(
          "model.attention_scale", {0, 1e6}, must_match,
          "attention's scores are the products of queries and keys times this. 0: 1 / sqrt(the width of a key), and 1 "
          "with attention = lsh. T5 has 1; Gemma 2 and 3 in their largest sizes 1 / sqrt(d_model / heads); DeepSeek's yarn (0.1 "
          "mscale_all_dim ln(rope_factor) + 1)^2 times the usual one, and model.rope_attention_factor = 1"),
      kind_row<&Model::attention_softcap>(
          "model.attention_softcap", {0, no_upper_bound}, report,
          "attention's scores s become cap * tanh(s / cap) with this cap. 0: they stay as they are"),
      row<&Model::output_softcap>("model.output_softcap", {0, no_upper_bound}, report,
                                  "the logits z become cap * tanh(z / cap) with this cap. 0: they stay as they are"),
      row<&Model::logit_scale>("model.logit_scale", {1e-6, 1e6}, must_match,
                               "the logits, model.output_bias included, are multiplied by this before they are capped"),
      row<&Model::output_bias>("model.output_bias", {}, must_match,
                               "true: the logits have a learned bias, which model.logit_scale multiplies, too (GPT-J)"),
      row<&Model::output_transform>(
          "model.output_transform", {}, must_match,
          "true: a product with a square matrix, gelu and a norm precede the output (the head of BERT's masked language "
          "model). The product has a bias if model.bias is all or mlp"),
      row<&Model::tie_embeddings>("model.tie_embeddings", {}, must_match,
                                  "true: the output uses the embedding's weights"),
      row<&Model::scale_embedding>(
          "model.scale_embedding", {}, must_match,
          "true: the embedding is multiplied by the root of d_model (Vaswani et al., 2017; Gemma)"),
      row<&Model::embedding_scale>(
          "model.embedding_scale", {1e-6, 1e6}, must_match,
          "the embedding is multiplied by this, before positions are added (Granite). Apart from "
          "model.scale_embedding"),
      row<&Model::residual_scale>(
          "model.residual_scale", {1e-6, 1e6}, must_match,
          "what attention and FFN, with their norms, add to the residual stream is multiplied by this (Granite)"),
      row<&Model::reversible_output>(
          "model.reversible_output", {}, must_match,
          "with train.reversible, the input of the final norm: the mean of both residual streams, or concat: both, one "
          "after the other, so that final norm and output are twice as wide (Reformer)"),
      row<&Model::embedding_norm>("model.embedding_norm", {}, must_match,
                                  "true: a norm follows the sum of the embedding and its position vectors (BLOOM)"),
      row<&Model::first_norm>(
          "model.first_norm", {}, must_match,
          "false: the attention of the first layer reads its input without a norm (ModernBERT), for model.norm_position "
          "= pre"),
      row<&Model::segments>(
          "model.segments", {0, 1 << 16}, must_match,
          "the number of learned segment vectors (token types), one of which is added to the embedding of each token: "
          "the first, unless model.segment_token says otherwise. 0: none"),
      row<&Model::segment_token>(
          "model.segment_token", {-1, 1 << 28}, report,
          "the id of the token that ends a segment, such as BERT's [SEP]: the tokens of a document after it have the "
          "next segment vector, up to the last. -1: all tokens have the first"),
      row<&Model::init_std>("model.init_std", {0, 1e3}, ignore,
                            "the standard deviation of the initial weights. Biases start at 0, norms at 1"),
      row<&Model::init_residual_scale>(
          "model.init_residual_scale", {0, 1e3}, ignore,
          "the initial weights of the last product of attention, FFNs and experts are multiplied by this. 0: by 1 / "
          "sqrt(2 * model.layers) (GPT-2)"),
      row<&Model::mup>(
          "model.mup", {}, must_match,
          "true: maximal update parametrisation (Yang et al., \"Tensor Programs V\", 2022), of experts and routers, too "
          "(Malasnicki et al., 2025). With r = model.d_model / model.mup_base_width, initial weights of products are "
          "divided by sqrt(r) and their learning rate by r; those of routers and gates are both divided by r; the "
          "logits are divided by r; and model.attention_scale = 0 is 1 / (the width of a key)"),
      row<&Model::mup_base_width>(
          "model.mup_base_width", {0, 1 << 20}, must_match,
          "with model.mup, the model.d_model for which train.lr and model.init_std were chosen"),
      stack_row<&Moe::experts>("moe.experts", {0, 1 << 20}, must_match,
                               "the number of experts of each MoE layer. 0: a dense model"),
      row<&Moe::top_k>("moe.top_k", {1, 1 << 20}, report, "the number of experts that the router sends each token to"),
      stack_row<&Moe::every>(
          "moe.every", {1, 10000}, must_match,
          "layers first_dense, first_dense + every, first_dense + 2 every and so on, counted from 0, have experts; "
          "the others have a dense FFN"),
      stack_row<&Moe::first_dense>("moe.first_dense", {0, 10000}, must_match,
                                   "this many layers at the start have a dense FFN"),
      stack_row<&Moe::dense_layers>(
          "moe.dense_layers", {}, must_match,
          "numbers of more layers with a dense FFN, counted from 0, with commas between them"),
      row<&Moe::d_ff>("moe.d_ff", {0, 1 << 24}, must_match, "the inner width of an expert. 0: model.d_ff"),
      row<&Moe::ffn>("moe.ffn", {}, must_match,
                     "the activation of experts, the shared ones too, as model.ffn. Empty: that of model.ffn",
                     ffn_values),
      row<&Moe::shared_experts>("moe.shared_experts", {0, 1 << 16}, must_match,
                                "the number of experts, of width moe.d_ff each, that every token passes"),
      row<&Moe::shared_d_ff>("moe.shared_d_ff", {0, 1 << 24}, must_match,
                             "the inner width of all shared experts together. 0: shared_experts * d_ff"),
      row<&Moe::shared_gate>(
          "moe.shared_gate", {}, must_match,
          "true: what the shared experts give is multiplied by sigmoid(w x), with a learned vector w"),
      row<&Moe::bias>("moe.bias", {}, must_match, "true: the experts have biases, but for the shared ones"),
      row<&Moe::router_bias>("moe.router_bias", {}, must_match, "true: the router's logits have a learned bias"),
      row<&Moe::score>("moe.score", {}, report, "the function that makes scores of the router's logits"),
      row<&Moe::renormalize>(
          "moe.renormalize", {}, report,
          "true: the weights of a token's experts are divided by their sum. auto: true if moe.top_k is greater "
          "than 1. With moe.top_k = 1, true makes every weight 1: the router then learns from the load-balance "
          "loss alone"),
      row<&Moe::scale>("moe.scale", {1e-30, no_upper_bound}, report,
                       "the weights of a token's experts are multiplied by this"),
      row<&Moe::capacity_factor>(
          "moe.capacity_factor", {0, 1 << 20}, report,
          "an expert takes up to ceil(capacity_factor * top_k * tokens / experts) of the tokens that share a "
          "capacity; what is over is dropped. 0: nothing is dropped"),
      row<&Moe::capacity_scope>(
          "moe.capacity_scope", {}, report,
          "the tokens that share a capacity: those of a sequence, or those of a rank's micro-batch, of which each "
          "tensor-parallel rank has 1 / parallel.tp"),
      row<&Moe::drop_order>(
          "moe.drop_order", {}, report,
          "the assignments that a full expert keeps. token: those of earlier tokens; choice: first choices, then "
          "the second; probability: tokens with larger weights"),
      row<&Moe::aux_loss>("moe.aux_loss", {0, no_upper_bound}, report, "the factor of the load-balance loss"),
      row<&Moe::aux_scope>(
          "moe.aux_scope", {}, report,
          "the tokens over which the load-balance loss is taken: those of a sequence; micro_batch: those of a "
          "rank's micro-batch, of which each tensor-parallel rank has 1 / parallel.tp; or those that all ranks "
          "compute at once (dp * train.micro_batch sequences)"),
      row<&Moe::aux_layers>(
          "moe.aux_layers", {}, report,
          "each: every MoE layer has a load-balance loss of its own; joint: all have one together, of the means "
          "over the layers of what an expert number gets and of its probability, as transformers defines it for "
          "Mixtral, OLMoE and Qwen's"),
      row<&Moe::aux_probability>(
          "moe.aux_probability", {}, report,
          "what the load-balance loss takes for the probabilities of a token's experts. softmax: those of the "
          "softmax of the logits; score: the scores of moe.score, divided by their sum over the experts "
          "(DeepSeek-V3)"),
      row<&Moe::z_loss>("moe.z_loss", {0, no_upper_bound}, report, "the factor of the router z-loss"),
      row<&Moe::bias_update_rate>(
          "moe.bias_update_rate", {0, no_upper_bound}, report,
          "after a step, an expert's selection bias rises by this where it had less than its share, and falls by "
          "it where it had more. 0: there is no such bias"),
      row<&Moe::groups>("moe.groups", {1, 1 << 20}, report, "the experts form this many groups"),
      row<&Moe::topk_groups>(
          "moe.topk_groups", {1, 1 << 20}, report,
          "a token chooses its experts within this many groups, those of the largest moe.group_score"),
      row<&Moe::group_score>(
          "moe.group_score", {}, report,
          "the score of a group, selection biases included: the sum of its two best experts' scores, or the best "
          "one's"),
      row<&Moe::choice>(
          "moe.choice", {}, report,
          "how a token chooses its experts. top: those of the largest scores; noisy: those of the largest logits, "
          "to which training adds normal noise for the choice alone; sampled: training draws them, one after the "
          "other, in proportion to the softmax of the logits of those that are left; balanced: training sends "
          "token n to experts n, n + 1 ... whatever their scores, for measuring what an even load would cost; if "
          "moe.topk_groups is below moe.groups, the token chooses its groups by the same preference and stays "
          "within them, so that the load may be uneven. Evaluation and generation draw nothing: they take the "
          "largest ones"),
      row<&Moe::noise>("moe.noise", {0, no_upper_bound}, report,
                       "the standard deviation of the noise of moe.choice = noisy"),
      row<&Moe::learned_noise>(
          "moe.learned_noise", {}, must_match,
          "true: moe.noise is multiplied by softplus(w x) of each expert, with learned w, and the noise is added to "
          "the logits themselves (Shazeer et al., \"Outrageously large neural networks\", 2017)"),
      row<&Moe::jitter>(
          "moe.jitter", {0, 1}, report,
          "training multiplies each element of what the router reads by a number between 1 - jitter and 1 + jitter "
          "(Fedus et al., \"Switch Transformers\", 2022)"),
      row<&Moe::expert_map>(
          "moe.expert_map", {}, ignore,
          "a file that `switchyard experts --placement ep=N --placement-file` wrote: training puts the experts "
          "where it says, so that the ranks are loaded evenly. Results and checkpoints are those of the experts in "
          "order. Empty: in order"),
  };
  return table;
}

}  // namespace sy
