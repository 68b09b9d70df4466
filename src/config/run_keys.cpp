// The configuration keys of [parallel], [train], [data], [run] and [log].
#include <fmt/format.h>

#include "src/config/key_row.h"
#include "src/config/lora_targets.h"
#include "src/optimizers/update_rule.h"

namespace sy {

template <>
std::vector<std::string> names_of<Optimizer>() {
  std::vector<std::string> names;
  for (const UpdateRule& rule : update_rules()) names.emplace_back(rule.name);
  return names;
}

namespace {

std::string optimizer_help() {
  std::string text = "the rule that updates the weights w. ";
  for (const UpdateRule& rule : update_rules()) text += fmt::format("{}: {}. ", rule.name, rule.meaning);
  return text + "A run resumes with the optimizer that it began with";
}

std::string lora_targets_help() {
  std::vector<std::string> names;
  for (const LoraTarget& target : lora_targets()) names.push_back(target.name);
  return fmt::format(
      "the weight matrices that LoRA changes, with commas between them: {}, or one matrix of such a group: {}. "
      "attention.q is the queries' matrix of every layer. Empty: all",
      fmt::join(lora_groups(), ", "), fmt::join(names, ", "));
}

// Sizes of [parallel]. The value 0 is written as auto.
constexpr ValueType axis_size_type{
    .accepts = [] { return std::string("a whole number from 1 on, or auto"); },
    .names = names_of<Index>,
    .show =
        [](const void* value) {
          const Index size = *static_cast<const Index*>(value);
          return size == 0 ? std::string("auto") : fmt::format("{}", size);
        },
    .read =
        [](const std::string& text, void* value) {
          Index size = 0;
          if (text != "auto" && (!read(text, size) || size == 0)) return false;
          *static_cast<Index*>(value) = size;
          return true;
        },
    .json =
        [](const void* value) {
          const Index size = *static_cast<const Index*>(value);
          return size == 0 ? Json("auto") : Json(size);
        },
};

template <auto member>
constexpr Key axis_row(std::string_view name, std::string_view help) {
  const Key key = row<member>(name, {1, 1 << 15}, ResumePolicy::ignore, help);
  return {key.name, axis_size_type, key.address, key.bounds, key.on_resume, key.help, key.values};
}

}  // namespace

std::span<const Key> run_keys() {
  using Parallel = Config::Parallel;
  using Train = Config::Train;
  using Data = Config::Data;
  using Run = Config::Run;
  using Log = Config::Log;
  using enum ResumePolicy;
  static const std::string optimizer_text = optimizer_help();
  static const std::string lora_text = lora_targets_help();
  static const Key table[] = {
      axis_row<&Parallel::tp>(
          "parallel.tp",
          "the number of tensor-parallel ranks, which split attention, dense FFNs and the vocabulary. The "
          "data-parallel ranks are the rest: ranks / tp. auto, here and for the other keys of [parallel]: the size with "
          "which a step is predicted to be the fastest on these ranks. A training that resumes then keeps dp * "
          "train.micro_batch of its checkpoint on another number of ranks"),
      axis_row<&Parallel::ep>("parallel.ep",
                              "the number of expert-parallel ranks, which hold the experts between them"),
      axis_row<&Parallel::etp>("parallel.etp", "the number of ranks that split each expert"),
      axis_row<&Parallel::ranks_per_node>(
          "parallel.ranks_per_node",
          "the number of consecutive ranks on each machine, where experts are on several: a token then travels "
          "once to each machine that has any of its experts, is spread there, and comes back as one sum. 1: it "
          "travels once to each rank. Sums are taken by machine, so that results with another number agree within "
          "rounding"),
      row<&Train::objective>(
          "train.objective", {}, must_match,
          "what the loss predicts. causal: each next token; masked: tokens that are chosen and hidden, from those on "
          "both sides (Devlin et al., 2019); prefix: the rest of a text whose beginning, up to a random token, the encoder "
          "of an encoder-decoder reads, or the tokens of a decoder see on both sides (Raffel et al., 2020). Of "
          "encoder-decoders: span_corruption: the text of hidden spans, for each of which the encoder reads one sentinel "
          "(ibid.); seq2seq: the target of a source (`prepare --pairs`). auto: masked in an encoder, causal in a decoder, "
          "span_corruption in an encoder-decoder"),
      row<&Train::mask_rate>("train.mask_rate", {0, 1}, report,
                             "with train.objective = masked, the probability that a token is chosen; with "
                             "span_corruption, the share of the tokens that is hidden"),
      row<&Train::span_length>("train.span_length", {1, 1 << 16}, report,
                               "with train.objective = span_corruption, the mean number of tokens of a hidden span"),
      row<&Train::mask_token_share>("train.mask_token_share", {0, 1}, report,
                                    "this share of the chosen tokens becomes model.mask_token"),
      row<&Train::mask_random_share>(
          "train.mask_random_share", {0, 1}, report,
          "this share of the chosen tokens becomes a random token. The others stay as they are"),
      row<&Train::mask_whole_words>(
          "train.mask_whole_words", {}, report,
          "true: all tokens of a word are chosen together. A word is a run of letters, digits and characters beyond "
          "ASCII"),
      row<&Train::steps>("train.steps", {1, no_upper_bound}, report, "the number of optimizer steps"),
      row<&Train::global_batch>("train.global_batch", {1, 1 << 28}, report,
                                "the number of sequences in a step, over all ranks"),
      row<&Train::batch_ramp>(
          "train.batch_ramp", {}, report,
          "changes of the global batch, STEP:BATCH, as in 1000:32, 5000:64: from step STEP on, a step has BATCH "
          "sequences, and train.global_batch before the first one. The learning rate follows from the number of the "
          "step, whatever its batch. Empty: all steps have train.global_batch"),
      row<&Train::micro_batch>(
          "train.micro_batch", {1, 1 << 28}, report,
          "the number of sequences that a data-parallel rank computes at a time. A step's samples go to "
          "(micro-batch, rank, sequence) in this order"),
      row<&Train::seed>("train.seed", {}, reorders_samples,
                        "the initial weights and the order of the samples follow from this number"),
      row<&Train::lr>("train.lr", {0, no_upper_bound}, report, "the highest learning rate, after the warm-up"),
      row<&Train::min_lr>("train.min_lr", {0, no_upper_bound}, report,
                          "the learning rate at the last step, unless train.schedule is constant"),
      row<&Train::warmup>("train.warmup", {0, no_upper_bound}, report,
                          "the learning rate rises from 0 over this many steps"),
      row<&Train::schedule>(
          "train.schedule", {}, report,
          "how the learning rate goes from train.lr to train.min_lr. constant: it stays; wsd: it stays, then falls "
          "over the last train.decay_steps steps, as train.decay_shape says"),
      row<&Train::decay_steps>(
          "train.decay_steps", {0, no_upper_bound}, report,
          "with train.schedule = wsd, the learning rate falls over this many steps, the last ones. 0: over the last "
          "tenth of train.steps"),
      row<&Train::decay_shape>(
          "train.decay_shape", {}, report,
          "with train.schedule = wsd, the part of train.lr - train.min_lr that is left after the fraction x of the "
          "decay. linear: 1 - x; cosine: (1 + cos(pi x)) / 2; 1-sqrt: 1 - sqrt(x)"),
      row<&Train::rewarmup>(
          "train.rewarmup", {0, no_upper_bound}, report,
          "if a run resumes a checkpoint with another value of this key, the learning rate rises from 0 to its "
          "schedule over this many steps after the checkpoint. A resumption with the same value goes on with the rise "
          "that has begun. 0: it does not rise"),
      row<&Train::optimizer>("train.optimizer", {}, report, optimizer_text),
      row<&Train::momentum>("train.momentum", {0, 1 - 1e-6}, report,
                            "sgd keeps this fraction of its momentum m at each step: m = momentum * m + gradient"),
      row<&Train::muon_momentum>("train.muon_momentum", {0, 1 - 1e-6}, report, "the same for muon"),
      row<&Train::moment_dtype>(
          "train.moment_dtype", {}, report,
          "the type of the optimizer's state: f32, or bf16, rounded to nearest, which halves its memory. Checkpoints "
          "hold it in f32, so a run may resume with the other type",
          dtype_values),
      row<&Train::qk_clip>(
          "train.qk_clip", {0, no_upper_bound}, report,
          "QK-clip (Kimi K2, 2025): if the largest logit of a head in a step is above this number, the update also "
          "scales the head's weights of queries and keys, so that the logit would be this number. 0: no limit"),
      row<&Train::weight_decay>(
          "train.weight_decay", {0, no_upper_bound}, report,
          "the decoupled weight decay, of the embedding, of learned positions and of the weights of all products, "
          "routers and gates included. Norms (of queries and keys, too), biases, attention sinks and the table of "
          "position = t5 do not decay"),
      row<&Train::decay_embeddings>(
          "train.decay_embeddings", {}, report,
          "false: the embedding, which is the output too if model.tie_embeddings is set, and learned positions do not "
          "decay"),
      row<&Train::beta1>("train.beta1", {0, 1 - 1e-6}, report, "AdamW's decay of the first moment"),
      row<&Train::beta2>("train.beta2", {0, 1 - 1e-6}, report, "AdamW's decay of the second moment"),
      row<&Train::eps>("train.eps", {0, 1}, report, "AdamW adds this to the root of the second moment"),
      row<&Train::clip>("train.clip", {0, no_upper_bound}, report,
                        "a gradient with a larger norm than this is scaled down to it. 0: it is not"),
      row<&Train::lora_rank>(
          "train.lora_rank", {0, 1 << 16}, must_match,
          "LoRA (Hu et al., 2021): the weights that run.init_from has are frozen, and each weight matrix W of "
          "train.lora_targets becomes W + lora_alpha / lora_rank * B A, where only A, of lora_rank rows, and B are "
          "trained. 0: no LoRA, all parameters are trained"),
      row<&Train::lora_alpha>("train.lora_alpha", {0, no_upper_bound}, must_match,
                              "the factor of B A is lora_alpha / lora_rank. 0: as train.lora_rank, so the factor is 1"),
      row<&Train::lora_targets>("train.lora_targets", {}, must_match, lora_text),
      row<&Train::validate_every>(
          "train.validate_every", {0, no_upper_bound}, report,
          "the number of steps between validations, which tell the loss by domain on the data set's validation "
          "text, dropless; there is one after the last step, too. 0: none"),
      row<&Train::validate_windows>(
          "train.validate_windows", {0, no_upper_bound}, report,
          "a validation takes this many windows of model.seq_len tokens of each domain, evenly spread. 0: all"),
      row<&Train::patience>(
          "train.patience", {0, no_upper_bound}, report,
          "training stops early, with exit code 0, after this many validations in a row that did not lower the "
          "validation loss. 0: it does not"),
      row<&Train::target_loss>(
          "train.target_loss", {0, no_upper_bound}, report,
          "training stops, with exit code 0 and a checkpoint, after a validation whose loss over all domains is this "
          "or lower. 0: it does not"),
      row<&Train::spike_sigma>(
          "train.spike_sigma", {0, no_upper_bound}, report,
          "a step is skipped, so that weights and optimizer stay as they are, if its gradient norm is not finite, or "
          "above mean + spike_sigma * standard deviation of the norms of the last 128 updates. With fewer than 16 of "
          "them, no finite norm is. 0: no step is skipped, and a norm that is not finite ends the run"),
      row<&Train::max_skipped>("train.max_skipped", {0, no_upper_bound}, report,
                               "with train.spike_sigma, more skipped steps than this in a row end the run"),
      row<&Train::recompute>(
          "train.recompute", {}, report,
          "the activations that the backward pass computes again, which takes time and saves memory, from the "
          "cheapest to the dearest. norms: normalised inputs. experts: hidden activations of experts and dense "
          "FFNs; no token is dispatched again. attention: all of attention but its output projection. block: all "
          "activations of a layer but its input, with another dispatch. true means block, false none"),
      row<&Train::reversible>(
          "train.reversible", {}, must_match,
          "true: the layers are reversible (RevNet, 2017; Reformer, 2020). A token has two residual streams, both begin "
          "as the embedding, and their mean goes to the final norm. Attention reads the second and adds to the first, "
          "FFNs read the first and add to the second. The backward pass computes the inputs of a layer from its "
          "outputs, so the memory of activations does not grow with model.layers"),
      row<&Train::z_loss>(
          "train.z_loss", {0, no_upper_bound}, report,
          "the factor of the output z-loss, the mean of log^2 Z. z_loss in the metrics is its sum with that of the "
          "routers"),
      row<&Train::mtp_loss_weight>(
          "train.mtp_loss_weight", {0, no_upper_bound}, report,
          "the factor of the mean loss of the modules of model.mtp_depth, which is added to the loss"),
      row<&Train::indexer>(
          "train.indexer", {}, must_match,
          "the stage of a model with model.attention = indexed. warmup: attention sees all earlier tokens, and the "
          "indexers alone are trained: their scores learn the distribution of attention, by its KL divergence; all "
          "other parameters are frozen; sparse: attention sees the selected tokens, by whose distribution the indexers "
          "go on to learn, and the loss trains all other parameters. A run of the second stage starts from the first "
          "one's weights with run.init_from"),
      row<&Train::indexer_loss_weight>("train.indexer_loss_weight", {0, no_upper_bound}, report,
                                       "the factor of each indexer's mean KL divergence, which trains it alone"),
      row<&Data::path>(
          "data.path", {}, reorders_samples,
          "the folder that `switchyard prepare` wrote. A relative path is looked for in the working directory, "
          "then beside the configuration file"),
      row<&Data::force>(
          "data.force", {}, ignore,
          "true: data of another tokenizer than the one that the checkpoint was trained with are taken, with a "
          "warning; otherwise run.init_from and run.resume refuse them"),
      row<&Data::documents>(
          "data.documents", {}, reorders_samples,
          "what a sample makes of the documents of its text. join: a window of the joined text. mask: the same "
          "window, but attention stays within a document, positions restart in each, and no loss counts its first "
          "token. pack: as mask, with whole documents that are packed into windows; only a document longer than "
          "model.seq_len is cut. Evaluation treats pack as mask"),
      row<&Data::blend_schedule>(
          "data.blend_schedule", {}, report,
          "changes of the weights of domains, STEP:NAME=WEIGHT ..., as in 1000:web=7 code=3, 5000:code=1: from step STEP "
          "on, the samples are of these domains, in proportion to the weights, and of no other. The steps before the "
          "first change have the weights of the data set. Empty: all steps have them"),
      row<&Data::mask_eod_loss>(
          "data.mask_eod_loss", {}, report,
          "true: no loss counts the first token of a document, which the text before it does not predict. The loss is "
          "the mean over the other tokens, in training and in evaluation. data.documents = mask and pack do so anyway"),
      row<&Run::dir>("run.dir", {}, ignore, "the folder of the run, with its configuration, metrics and checkpoints"),
      row<&Run::backend>("run.backend", {}, report,
                         "what computes: cpu, cuda, or auto, which is a GPU where there is one", backend_values),
      row<&Run::dtype>("run.dtype", {}, report,
                       "the type of weights and activations: f32, or bf16 with sums and optimizer in f32",
                       dtype_values),
      row<&Run::log_every>("run.log_every", {1, no_upper_bound}, report,
                           "the number of steps between log lines, and between counts of the experts' tokens"),
      row<&Run::checkpoint_every>("run.checkpoint_every", {0, no_upper_bound}, report,
                                  "the number of steps between checkpoints. 0: there is one after the last step alone"),
      row<&Run::checkpoint_first>(
          "run.checkpoint_first", {}, report,
          "true: a checkpoint of the initial weights, step 0, is written, too; run.keep counts it"),
      row<&Run::async_checkpoint>(
          "run.async_checkpoint", {}, ignore,
          "true: a checkpoint is copied to the host's memory, and written from there while training goes on. false: "
          "training waits until it is written, which needs no memory. The files are the same"),
      row<&Run::keep>(
          "run.keep", {0, no_upper_bound}, report,
          "the number of checkpoints that are kept, the newest ones, beside the newest before the loss rose. 0: "
          "all"),
      row<&Run::keep_best>(
          "run.keep_best", {0, 1000}, report,
          "the number of checkpoints with the lowest validation losses that are kept, whatever run.keep says. "
          "After a validation whose loss is among the lowest, there is a checkpoint, too. 0: none"),
      row<&Run::keep_every>(
          "run.keep_every", {0, no_upper_bound}, report,
          "checkpoints of steps that are multiples of this are kept, whatever run.keep says. 0: none"),
      row<&Run::resume>(
          "run.resume", {}, ignore,
          "true: training goes on from the newest whole checkpoint of run.dir, or starts where there is none"),
      row<&Run::resume_step>("run.resume_step", {-1, no_upper_bound}, ignore,
                             "with run.resume, training goes on from the checkpoint of this step. -1: from the newest"),
      row<&Run::check_every>(
          "run.check_every", {0, no_upper_bound}, ignore,
          "the number of steps between comparisons of all values that several ranks hold: weights, selection biases, "
          "token ids and the numbers of the update. If they differ, the run ends before it writes a checkpoint. With "
          "a number above 0, each checkpoint is preceded by a comparison, too. 0: none"),
      row<&Run::memory_check>(
          "run.memory_check", {}, ignore,
          "digest: each rank keeps digests of the weights and of the optimizer state that it owns. Each update and each "
          "checkpoint compares them with the memory. If a value has changed since the update before, the run ends "
          "before it writes a checkpoint. Frozen weights have no digests. off: none"),
      row<&Run::replay_step>(
          "run.replay_step", {0, no_upper_bound}, ignore,
          "training repeats this step of the run in run.dir, from the newest checkpoint before it, and writes "
          "RUN/replay/step-N: the trace of each rank, and the loss and the gradient norm of each parameter. It changes "
          "nothing else. 0: no step"),
      row<&Run::max_hours>(
          "run.max_hours", {0, no_upper_bound}, ignore,
          "a checkpoint is written, and the run stops with exit code 3, before this many hours since the start of "
          "the program are over. 0: no limit"),
      row<&Run::init_from>("run.init_from", {}, ignore,
                           "a checkpoint, or a run, whose weights a new run starts from in place of random ones"),
      row<&Run::machine>("run.machine", {}, ignore,
                         "a machine file, or the name of one in configs/machines: MFU is the share of its peak. "
                         "`switchyard doctor --machine FILE` measures this machine. Empty: MFU is unknown"),
      row<&Log::csv>(
          "log.csv", {}, ignore,
          "true: RUN/metrics.csv has a line a step, with the numbers of metrics.jsonl and, every run.log_every "
          "steps, each MoE layer's load imbalance (the busiest expert's load / the mean load) and drop rate"),
      row<&Log::tensorboard>("log.tensorboard", {}, ignore,
                             "true: RUN/tensorboard has the same numbers, for TensorBoard"),
      row<&Log::prometheus>(
          "log.prometheus", {}, ignore,
          "true: RUN/metrics.prom has the latest of these numbers, as node_exporter's textfile collector reads them"),
      row<&Log::mllog>("log.mllog", {}, ignore,
                       "true: RUN/mllog.txt has the events that the compliance checker of MLPerf Training "
                       "(mlperf-logging) reads"),
      row<&Log::mllog_benchmark>("log.mllog_benchmark", {}, ignore, "the benchmark that RUN/mllog.txt names"),
      row<&Log::mllog_division>("log.mllog_division", {}, ignore,
                                "the division that RUN/mllog.txt names: closed, or open", mllog_divisions),
      row<&Log::mllog_org>("log.mllog_org", {}, ignore, "the organisation that RUN/mllog.txt names"),
      row<&Log::mllog_platform>("log.mllog_platform", {}, ignore, "the machine that RUN/mllog.txt names"),
      row<&Log::energy>(
          "log.energy", {}, ignore,
          "true: the numbers have the joules of each step, of processors and memory (RAPL) and of GPUs (NVML). What "
          "cannot be read is null"),
      row<&Log::trace_first>(
          "log.trace_first", {0, no_upper_bound}, ignore,
          "from this step on, each rank records when it did what, and writes RUN/trace/rank-NNNN.json, which "
          "Perfetto (ui.perfetto.dev) opens. On a GPU, times are those at which the host had the work started. 0: "
          "no step"),
      row<&Log::trace_steps>("log.trace_steps", {1, 10000}, ignore, "the number of steps that are recorded"),
  };
  return table;
}

}  // namespace sy
