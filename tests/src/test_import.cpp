// Models of the Hugging Face families are imported, computed and exported
// (tests/golden/families.py, tests/golden/encoder_decoders.py).
#include <gtest/gtest.h>
#include <omp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "src/cli/options.h"
#include "src/evaluate/logits.h"
#include "src/families/export.h"
#include "src/families/import.h"
#include "src/families/settings.h"
#include "src/families/upcycle.h"
#include "src/io/lock.h"
#include "src/model/engine.h"
#include "src/system/files.h"
#include "tests/src/golden_gradient.h"
#include "tests/src/golden_model.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

namespace fs = std::filesystem;

const Json& cases() {
  static const Json all = [] {
    Json list = Json::array();
    for (const char* file : {"families.json", "encoder_decoders.json", "reformer.json"}) {
      const Json some = Json::parse(read_file(fmt::format("{}/{}", GOLDEN, file)));
      for (const Json& one : some) list.push_back(one);
    }
    return list;
  }();
  return all;
}

// Makes the run that the import command makes from a folder.
void import_model(const fs::path& folder, const fs::path& run, const FamilyModel& model, FamilyValues& values) {
  const auto self = make_comm_self();
  TrainState state;
  state.config = to_ini(model.config);
  state.vocab = model.vocab;
  state.layout = Layout{}.str();
  state.experts.experts = model.config.moe.experts;
  for (Index layer = 0; layer < model.config.num_blocks(); ++layer)
    if (model.config.is_moe(layer)) state.experts.layer_ids.push_back(layer);
  state.experts.layers = std::ssize(state.experts.layer_ids);
  state.router_bias = selection_biases(values, values.params());
  save_imported_files(folder, values, run);
  save_weights(*self, run, state, param_specs(model.config, model.vocab), values, [](Index, Index) {});
}

// Compares the logits with the golden ones, relative to the largest.
void expect_logits(Engine& engine, const Json& golden, double tolerance) {
  const auto ids = golden["ids"].get<std::vector<std::int64_t>>();
  std::vector<float> all;  // of an encoder or an encoder-decoder
  if (engine.config().model.kind == ModelKind::encoder_decoder) {
    const auto source = golden["source"].get<std::vector<std::int64_t>>();
    all = pair_logits(engine, std::vector<std::int32_t>(source.begin(), source.end()),
                      std::vector<std::int32_t>(ids.begin(), ids.end()));
  }
  if (engine.config().model.kind == ModelKind::encoder || engine.config().num_lsh_layers() > 0)
    all = sequence_logits(engine, std::vector<std::int32_t>(ids.begin(), ids.end()), [](Index, Index) {});
  Cache cache = engine.make_cache(1, std::ssize(ids), std::ssize(ids));
  Index done = 0;
  for (const Json::Member& row : golden["logits"].members()) {
    const Index upto = std::stoll(row.name) + 1;
    const std::vector<std::int32_t> next(ids.begin() + done, ids.begin() + upto);
    const std::vector<float> logits = all.empty() ? engine.decode(cache, 0, 1, next, true, std::ssize(ids))
                                                  : std::vector<float>(all.begin() + (upto - 1) * engine.vocab(),
                                                                       all.begin() + upto * engine.vocab());
    done = upto;
    const auto want = row.value.get<std::vector<double>>();
    ASSERT_EQ(logits.size(), want.size());
    double largest = 0;
    for (const double x : want) largest = std::max(largest, std::abs(x));
    for (std::size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(logits[i], want[i], tolerance * largest) << row.name << " " << i;
  }
}

// Replaces the rotations of hashes by those of tests/golden/reformer.py.
Config with_golden_rotations(Config config) {
  const std::vector<BlockSpec> blocks = block_specs(config);
  for (Index layer = 0; layer < config.model.layers; ++layer)
    if (const auto* hashed = blocks[static_cast<std::size_t>(layer)].find<LshAttentionSpec>()) {
      std::vector<float>& rotations = config.lsh_rotations[layer];
      const Index n = hashed->heads * hashed->key_width * hashed->rounds * hashed->rotation_columns();
      for (Index i = 0; i < n; ++i)
        rotations.push_back(golden_value(fmt::format("rotations.{}", layer), static_cast<std::uint32_t>(i), false));
    }
  return config;
}

class ImportedFamily : public testing::TestWithParam<std::size_t> {
 protected:
  const Json& golden() const { return cases()[GetParam()]; }
};

std::vector<std::size_t> numbers_of_cases() {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < cases().size(); ++i) numbers.push_back(i);
  return numbers;
}
std::string name_of_case(const testing::TestParamInfo<std::size_t>& info) {
  return cases()[info.param]["name"].get<std::string>();
}

TEST_P(ImportedFamily, LogitsEqualTransformers) {
  const TempFolder temp;
  write_model(temp.path() / "model", golden());
  std::vector<std::string> overrides;
  if (const Json* token = golden().find("segment_token")) overrides.push_back("--model.segment_token=" + token->dump());
  const FamilyModel model = open_family_model(temp.path() / "model", overrides);
  FamilyValues values(temp.path() / "model", model);
  const auto self = make_comm_self();
  Engine engine(with_golden_rotations(model.config), model.vocab, make_cpu(), make_mesh(*self, Layout{}), false);
  engine.store().fill(values);
  engine.set_router_bias(selection_biases(values, values.params()));
  expect_logits(engine, golden(), 1e-5);
}

TEST_P(ImportedFamily, ExportIsBitwiseEqual) {
  for (const std::string_view type : {"F32", "BF16", "F16"}) {
    SCOPED_TRACE(type);
    const TempFolder temp;
    const fs::path source = temp.path() / "model", run = temp.path() / "run", back = temp.path() / "back";
    write_model(source, golden(), type);
    const FamilyModel model = open_family_model(source, {});
    FamilyValues values(source, model);
    import_model(source, run, model, values);
    const auto self = make_comm_self();
    const fs::path step = resolve_checkpoint(run, nullptr);
    const TrainState state = read_state(step);
    export_checkpoint(*self, step, state, model.config, back, {}, [](Index, Index) {});
    EXPECT_TRUE(read_file(source / "model.safetensors") == read_file(back / "model.safetensors"));
    const Json before = golden()["config"], after = Json::parse(read_file(back / "config.json"));
    for (const Json::Member& m : before.members()) {
      if (m.name == "dtype" || m.name == "torch_dtype") continue;
      ASSERT_TRUE(after.contains(m.name)) << m.name;
      // A number may be written as 1000 or as 1000.0, and an absent value as null.
      if (m.value.is_number()) {
        EXPECT_EQ(after[m.name].get<double>(), m.value.get<double>()) << m.name;
      } else if (!m.value.is_null() && !m.value.is_object()) {
        EXPECT_EQ(after[m.name], m.value) << m.name;
      }
    }
  }
}

// DeepSeek-V3 with multi-token prediction: names of the published files, losses and gradients
// (tests/golden/mtp.py).
TEST(MultiTokenPrediction, EqualsPyTorch) {
  const Json golden = Json::parse(read_file(std::string(GOLDEN) + "/mtp.json"));
  const TempFolder temp;
  write_model(temp.path() / "model", golden);
  const FamilyModel model = open_family_model(
      temp.path() / "model", {"--moe.aux_loss=0", "--moe.z_loss=0",
                              fmt::format("--train.mtp_loss_weight={}", golden["weight"].get<double>())});
  ASSERT_EQ(model.config.model.mtp_depth, 2);
  FamilyValues values(temp.path() / "model", model);
  const auto self = make_comm_self();
  Engine engine(model.config, model.vocab, make_cpu(), make_mesh(*self, Layout{}), true);
  engine.store().fill(values);
  engine.set_router_bias(selection_biases(values, values.params()));
  std::vector<std::int32_t> ids, targets;
  for (const auto& [key, list] : {std::pair{"ids", &ids}, {"targets", &targets}})
    for (const Json& row : golden[key].elements())
      for (const Json& id : row.elements()) list->push_back(static_cast<std::int32_t>(id.get<std::int64_t>()));
  const Index T = std::ssize(ids), B = std::ssize(golden["ids"].elements());
  engine.forward_backward({B, T / B, ids, targets, T, B, 1});
  const Statistics found = engine.take_statistics();
  const double tokens = static_cast<double>(T), loss = golden["loss"].get<double>();
  EXPECT_NEAR(found.loss_sum / tokens, loss, 1e-5 * loss);
  ASSERT_EQ(found.mtp.size(), 2u);
  for (std::size_t k = 0; k < 2; ++k) {
    const double module = golden["mtp_losses"][k].get<double>();
    EXPECT_NEAR(found.mtp[k].loss_sum / tokens, module, 1e-5 * module) << k;
  }
  for (const FileTensor& tensor : values.tensors()) {
    if (tensor.is_copy || !golden["gradients"].contains(tensor.name)) continue;
    const auto want = golden["gradients"][tensor.name].get<std::vector<double>>();
    std::vector<float> gradient(static_cast<std::size_t>(tensor.elements()));
    for (const TensorMapping& mapping : tensor.mappings) {
      const ParamSpec& spec = values.params()[*mapping.param];
      const float* const grad = engine.store().get(spec.name).grad.f32();
      Shape first;
      for (int d = 0; d < spec.shape.size(); ++d) first.push_back(0);
      for_mapped_ranges(mapping, {first, spec.shape}, [&](Index from, Index offset, Index stride, Index n) {
        for (Index i = 0; i < n; ++i) gradient[static_cast<std::size_t>(offset + i * stride)] = grad[from + i];
      });
    }
    expect_golden_gradient(tensor.name, gradient, want, false, {.relative = 3e-5});
  }
}

// A checkpoint of the indexers' first stage sees all tokens. An exported model sees selected ones.
TEST(ExportOfIndexers, RefusesTheFirstStage) {
  const auto golden =
      std::find_if(cases().begin(), cases().end(), [](const Json& c) { return c["name"] == Json("deepseek_v32"); });
  ASSERT_NE(golden, cases().end());
  const TempFolder temp;
  const fs::path source = temp.path() / "model";
  write_model(source, *golden);
  const auto self = make_comm_self();
  const auto through = [&](const std::vector<std::string>& overrides, const std::string& name) {
    const fs::path run = temp.path() / ("run_" + name);
    const FamilyModel model = open_family_model(source, overrides);
    FamilyValues values(source, model);
    import_model(source, run, model, values);
    const fs::path step = resolve_checkpoint(run, nullptr);
    export_checkpoint(*self, step, read_state(step), model.config, temp.path() / name, {}, [](Index, Index) {});
  };
  const std::string warmup = "--train.indexer=warmup";
  const std::string refused =
      MESSAGE_OF(CollectiveError, through({warmup, "--model.seq_len=9", "--model.index_topk=8"}, "hidden"));
  EXPECT_NE(refused.find("trained further with train.indexer = sparse"), std::string::npos) << refused;
  EXPECT_NO_THROW(through({warmup, "--model.seq_len=9", "--model.index_topk=9"}, "all"));
  EXPECT_NO_THROW(through({"--model.seq_len=9", "--model.index_topk=8"}, "sparse"));
}

// An export has the imported files again. The export of a trained model has copies of embedding and
// output, as published files do. Imports ignore them.
TEST(MultiTokenPrediction, IsImportedAndExported) {
  const Json golden = Json::parse(read_file(std::string(GOLDEN) + "/mtp.json"));
  const TempFolder temp;
  const fs::path source = temp.path() / "model", run = temp.path() / "run";
  write_model(source, golden);
  const auto self = make_comm_self();
  const auto through = [&](const fs::path& from, const fs::path& to, bool forget) {
    const FamilyModel model = open_family_model(from, {});
    FamilyValues values(from, model);
    import_model(from, run, model, values);
    if (forget) fs::remove_all(run / "huggingface");
    const fs::path step = resolve_checkpoint(run, nullptr);
    export_checkpoint(*self, step, read_state(step), model.config, to, {}, [](Index, Index) {});
    fs::remove_all(run);
    return model.config.model.mtp_depth;
  };
  EXPECT_EQ(through(source, temp.path() / "back", false), 2);
  EXPECT_TRUE(read_file(source / "model.safetensors") == read_file(temp.path() / "back" / "model.safetensors"));
  EXPECT_EQ(through(source, temp.path() / "trained", true), 2);
  const StoredTensors written(temp.path() / "trained");
  EXPECT_EQ(written.size(), golden["tensors"].members().size() + 4);
  for (const std::string layer : {"2", "3"})
    for (const auto& [copy, original] : {std::pair{"embed_tokens.weight", "model.embed_tokens.weight"},
                                         {"shared_head.head.weight", "lm_head.weight"}}) {
      const StoredTensor* const a = written.find("model.layers." + layer + "." + copy);
      const StoredTensor* const b = written.find(original);
      ASSERT_TRUE(a && b) << copy;
      EXPECT_EQ(std::memcmp(a->data, b->data, static_cast<std::size_t>(b->bytes)), 0);
    }
  EXPECT_EQ(Json::parse(read_file(temp.path() / "trained" / "config.json"))["num_nextn_predict_layers"], Json(2));
  EXPECT_EQ(through(temp.path() / "trained", temp.path() / "again", false), 2);
  EXPECT_TRUE(read_file(temp.path() / "trained" / "model.safetensors") ==
              read_file(temp.path() / "again" / "model.safetensors"));
}

const Json& golden_case(const char* name) {
  const auto golden =
      std::find_if(cases().begin(), cases().end(), [&](const Json& c) { return c["name"] == Json(name); });
  SY_ASSERT(golden != cases().end(), "no case {}", name);
  return *golden;
}

// ---- the commands ----

int run_command(int (*command)(CommandLine&), std::vector<std::string> args) {
  const auto world = make_comm_self();
  CommandLine line{*world, std::move(args)};
  return command(line);
}

// Calls `body` in a process that is killed before its n-th change of the disk. Returns whether it
// was killed.
bool killed_at(int n, const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    omp_set_num_threads(1);
    file_activity().write_fault = [left = n](std::string_view, const fs::path&) mutable {
      if (left-- == 0) raise(SIGKILL);
    };
    try {
      body();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << "point " << n;
  return killed;
}

// Expects that `code` throws the error of all ranks, and that its message contains the text.
#define EXPECT_REFUSED(code, text)                                              \
  do {                                                                          \
    const std::string message = MESSAGE_OF(CollectiveError, code);              \
    EXPECT_NE(message.find(text), std::string::npos) << "message: " << message; \
  } while (false)

std::string files_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    names.insert(entry.path().lexically_relative(folder).string());
  return fmt::to_string(fmt::join(names, " "));
}

// If an import or an export is killed at any point, the same command line completes it.
TEST(ImportAndExport, CompleteAfterAKill) {
  const TempFolder temp;
  const fs::path model = temp.path() / "model", run = temp.path() / "run", out = temp.path() / "out";
  write_model(model, golden_case("opt"));
  temp.write("model/tokenizer.json", "{}");
  const auto import_it = [&] { run_command(import_command, {model.string(), run.string(), "--quiet"}); };
  const auto export_it = [&] { run_command(export_command, {run.string(), out.string(), "--quiet"}); };
  import_it();
  const std::string whole_run = files_in(run);
  export_it();
  const std::string whole_out = files_in(out);
  int points = 0;
  for (bool killed = true; killed; ++points) {
    fs::remove_all(run);
    killed = killed_at(points, import_it);
    // After its last change, an import is complete.
    if (killed && fs::exists(run / "checkpoints") && !fs::exists(run / "import.unfinished")) continue;
    if (killed) import_it();
    ASSERT_EQ(files_in(run), whole_run) << points;
    EXPECT_REFUSED(import_it(), "is a run already");
  }
  EXPECT_GT(points, 20);
  points = 0;
  for (bool killed = true; killed; ++points) {
    fs::remove_all(out);
    killed = killed_at(points, export_it);
    if (killed && fs::exists(out)) {
      fs::remove(out / lock_name);
      EXPECT_FALSE(fs::exists(out.string() + ".tmp"));
    } else if (killed) {
      export_it();
    }
    ASSERT_EQ(files_in(out), whole_out) << points;
    EXPECT_TRUE(read_file(out / "model.safetensors") == read_file(model / "model.safetensors"));
    EXPECT_REFUSED(export_it(), "is there already");
  }
  EXPECT_GT(points, 8);
}

// PEFT adds adapters to the modules of the base model, which another run may have imported.
TEST(ImportAndExport, NamesAdaptersAsTheirBaseModel) {
  const auto self = make_comm_self();
  for (const auto& [name, prefix, task] : {std::tuple{"roberta", "base_model.model.roberta.encoder.", Json()},
                                           {"llama", "base_model.model.model.layers.", Json("CAUSAL_LM")}}) {
    SCOPED_TRACE(name);
    const TempFolder temp;
    const fs::path source = temp.path() / "model", base = temp.path() / "base", adapted = temp.path() / "adapted";
    write_model(source, golden_case(name));
    const FamilyModel imported = open_family_model(source, {});
    FamilyValues values(source, imported);
    import_model(source, base, imported, values);
    const FamilyModel model = open_family_model(source, {"--train.lora_rank=2", "--run.init_from=" + base.string()});
    Engine engine(model.config, model.vocab, make_cpu(), make_mesh(*self, Layout{}), true);
    engine.store().initialize(1);
    TrainState state;
    state.config = to_ini(model.config);
    state.vocab = model.vocab;
    save_checkpoint(*self, adapted, state, engine.store(), {});
    const fs::path step = resolve_checkpoint(adapted, nullptr);
    ExportOptions options;
    options.adapter = true;
    export_checkpoint(*self, step, read_state(step), model.config, temp.path() / "peft", options, [](Index, Index) {});
    const Json config = Json::parse(read_file(temp.path() / "peft" / "adapter_config.json"));
    EXPECT_EQ(config["task_type"], task);
    make_folders(temp.path() / "read");
    fs::copy_file(temp.path() / "peft" / "adapter_model.safetensors", temp.path() / "read" / "model.safetensors");
    const StoredTensors written(temp.path() / "read");
    for (const StoredTensors::File& file : written.files())
      for (const std::string& tensor : file.tensors) EXPECT_TRUE(tensor.starts_with(prefix)) << tensor;
    EXPECT_GT(written.size(), 0u);
  }
}

// A run that has been trained since does not count as an unfinished import.
TEST(ImportAndExport, KeepATrainedRun) {
  const TempFolder temp;
  const fs::path model = temp.path() / "model", run = temp.path() / "run";
  write_model(model, golden_case("llama"));
  const auto import_it = [&] { run_command(import_command, {model.string(), run.string(), "--quiet"}); };
  for (const char* made : {"run/metrics.jsonl", "run/checkpoints/step-00000007/index.h5"}) {
    temp.write("run/import.unfinished", "");
    temp.write(made, "");
    EXPECT_REFUSED(import_it(), "is a run already");
    EXPECT_TRUE(fs::exists(temp.path() / made));
    fs::remove_all(run);
  }
  for (const auto& [mine, why] : {std::pair{"run/huggingface/notes.txt", "holds 'huggingface', which an import would"},
                                  {"run/tokenizer/notes.txt", "holds 'tokenizer', which an import would"},
                                  {"run/config.ini", "is a run already"}}) {
    temp.write(mine, "mine");
    EXPECT_REFUSED(import_it(), why);
    EXPECT_EQ(read_file(temp.path() / mine), "mine");
    fs::remove_all(run);
  }
}

// The file names of an export come from the run, which anybody may have written.
TEST(ImportAndExport, RejectNamesOutsideTheFolder) {
  const TempFolder temp;
  const fs::path model = temp.path() / "model", run = temp.path() / "run", out = temp.path() / "a/b/out";
  write_model(model, golden_case("llama"));
  run_command(import_command, {model.string(), run.string(), "--quiet"});
  const fs::path list = run / "huggingface/files.json";
  const std::string text = read_file(list), name = "\"model.safetensors\"";
  const auto export_as = [&](const std::string& other) {
    std::string changed = text;
    changed.replace(changed.find(name), name.size(), json_text(Json(other), -1));
    std::ofstream(list, std::ios::binary) << changed;
    fs::remove(run / "huggingface/SHA256SUMS");
    run_command(export_command, {run.string(), out.string(), "--quiet"});
  };
  const std::string before = files_in(temp.path());
  for (const std::string other : {"../../../escaped", "", ".", "..", "a/../b", "a\nb", "config.json", "tokenizer.json",
                                  "model.safetensors.index.json"}) {
    EXPECT_REFUSED(export_as(other), "which cannot be one of an export's");
    EXPECT_EQ(fs::exists(out), false);
  }
  EXPECT_REFUSED(export_as((temp.path() / "absolute").string()), "which cannot be one of an export's");
  EXPECT_FALSE(fs::exists(temp.path() / "escaped") || fs::exists(temp.path() / "absolute"));
  export_as("other.safetensors");  // found only through an index
  EXPECT_TRUE(has(files_in(out), "model.safetensors.index.json other.safetensors"));
}

// The first two rows of the positions of opt are of no parameter.
TEST(ImportAndExport, KeepElementsWithoutAParameterInEachType) {
  const TempFolder temp;
  const fs::path model = temp.path() / "model", run = temp.path() / "run", out = temp.path() / "out";
  write_model(model, golden_case("opt"));
  run_command(import_command, {model.string(), run.string(), "--quiet"});
  run_command(export_command, {run.string(), out.string(), "--quiet", "--dtype", "bf16"});
  const auto values_of = [](const StoredTensor& t) {
    std::vector<float> values(static_cast<std::size_t>(t.bytes / stored_type(t.type)->bytes));
    stored_type(t.type)->load(t.data, 1, std::ssize(values), values.data());
    return values;
  };
  const StoredTensors before(model), after(out);
  const std::string name = "model.decoder.embed_positions.weight";
  ASSERT_TRUE(before.find(name) && after.find(name));
  const std::vector<float> a = values_of(*before.find(name)), b = values_of(*after.find(name));
  ASSERT_EQ(a.size(), b.size());
  EXPECT_NE(a.front(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], std::abs(a[i]) / 256) << i;
}

// Every reader of RUN/huggingface notices a changed file.
TEST(ImportAndExport, DetectChangedImportedFiles) {
  const TempFolder temp;
  const fs::path model = temp.path() / "model", run = temp.path() / "run", out = temp.path() / "out";
  write_model(model, golden_case("opt"));
  temp.write("model/tokenizer.json", "{\"a\": 1}");
  temp.write("model/tokenizer_config.json", "{\"b\": 1}");
  run_command(import_command, {model.string(), run.string(), "--quiet"});
  const fs::path imported = run / "huggingface";
  const auto export_it = [&] {
    fs::remove_all(out);
    run_command(export_command, {run.string(), out.string(), "--quiet"});
  };
  export_it();
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(imported)) {
    if (!entry.is_regular_file()) continue;
    const fs::path file = entry.path();
    const std::string text = read_file(file);
    std::string changed = text;
    changed[changed.size() / 2] ^= 1;
    for (const std::string& other : {changed, text.substr(0, text.size() / 2), text + "\n", std::string()}) {
      std::ofstream(file, std::ios::binary) << other;
      EXPECT_REFUSED(export_it(), "import the model again");
      EXPECT_FALSE(fs::exists(out));
    }
    std::ofstream(file, std::ios::binary) << text;
    ++files;
  }
  EXPECT_EQ(files, 6);  // config.json, files.json, two of the tokenizer, fillers, SHA256SUMS
  // A file that was added later is not exported.
  write_file(imported / "chat_template.jinja", "{{ other }}");
  EXPECT_BAD_INPUT(check_imported(run), "chat_template.jinja was not imported");
  EXPECT_BAD_INPUT(check_imported(run, {"tokenizer.json"}), "chat_template.jinja was not imported");
  EXPECT_REFUSED(export_it(), "chat_template.jinja was not imported");
  fs::remove(imported / "chat_template.jinja");
  EXPECT_NE(check_imported(run, {"tokenizer.json"}), "x");
  std::ofstream(imported / "config.json") << "{}";
  EXPECT_NO_THROW(check_imported(run, {"tokenizer.json", "tokenizer_config.json"}));
  std::ofstream(imported / "tokenizer_config.json") << "{}";
  EXPECT_BAD_INPUT(check_imported(run, {"tokenizer.json", "tokenizer_config.json"}), "import the model again");
  fs::remove(imported / "tokenizer_config.json");
  EXPECT_BAD_INPUT(check_imported(run, {"tokenizer_config.json"}), "is missing");
  fs::create_symlink(model / "tokenizer_config.json", imported / "tokenizer_config.json");
  EXPECT_BAD_INPUT(check_imported(run, {"tokenizer_config.json"}), "no regular file");
  // A run of an older program is exported with a warning.
  fs::remove(imported / "SHA256SUMS");
  write_file(imported / "config.json", read_file(model / "config.json"));
  EXPECT_TRUE(has(check_imported(run), "an older version imported it"));
  testing::internal::CaptureStderr();
  EXPECT_NO_THROW(export_it());
  EXPECT_EQ(count(testing::internal::GetCapturedStderr(), "warning"), 1);
  EXPECT_FALSE(fs::exists(out / "tokenizer_config.json"));  // a link
}

const Json& config_of_case(const char* name) {
  return golden_case(name)["config"];
}

// transformers trains with one loss of all layers if its router logits are requested.
TEST(FamilyConfig, HasTheLoadBalancingLossOfTheFamily) {
  for (const char* name : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss"}) {
    SCOPED_TRACE(name);
    const Family& family = family_named(name);
    Json hf_config = config_of_case(name);
    hf_config["router_aux_loss_coef"] = 0.05;
    EXPECT_EQ(config_of(family, hf_config, "test", {}).moe.aux_layers, AuxLayers::each);
    hf_config["output_router_logits"] = true;
    Config config = config_of(family, hf_config, "test", {});
    EXPECT_EQ(config.moe.aux_layers, AuxLayers::joint);
    EXPECT_EQ(config.moe.aux_scope, AuxScope::global_batch);
    EXPECT_EQ(config.moe.aux_loss, 0.05 * static_cast<double>(config.moe.top_k));
    EXPECT_EQ(config_json(family, config, hf_config)["router_aux_loss_coef"].get<double>(), 0.05);
    const Json fresh = config_json(family, config, Json());
    EXPECT_EQ(fresh["output_router_logits"], Json(true));
    EXPECT_NEAR(fresh["router_aux_loss_coef"].get<double>(), 0.05, 1e-15);
    config.moe.aux_layers = AuxLayers::each;
    EXPECT_EQ(config_json(family, config, hf_config)["output_router_logits"], Json(false));
    EXPECT_FALSE(config_json(family, config, Json()).contains("output_router_logits"));
  }
}

// The number of a missing component: transformers reads 0, and null only if it writes null itself.
TEST(FamilyConfig, WritesZeroAsNullLikeTransformers) {
  Config config = config_of(family_named("deepseek_v3"), config_of_case("deepseek_v3"), "test", {});
  config.moe.first_dense = 0;
  config.moe.shared_experts = 0;
  config.moe.shared_d_ff = 0;
  config.model.q_lora_rank = 0;
  const Json deepseek = config_json(family_named("deepseek_v3"), config, Json());
  EXPECT_EQ(deepseek["first_k_dense_replace"], Json(0));
  EXPECT_EQ(deepseek["n_shared_experts"], Json(0));
  EXPECT_EQ(deepseek["q_lora_rank"], Json());
  Json hf_config = config_of_case("gemma2");
  hf_config["attn_logit_softcapping"] = Json();
  const Json gemma =
      config_json(family_named("gemma2"), config_of(family_named("gemma2"), hf_config, "test", {}), Json());
  EXPECT_EQ(gemma["attn_logit_softcapping"], Json());
}

// Lists of layers override first_k_dense_replace, and must be of kinds that a configuration has.
TEST(FamilyConfig, ReadsTheLayerTypesOfDeepSeek32) {
  const Family& family = family_named("deepseek_v32");
  Json hf_config = config_of_case("deepseek_v32");
  const auto with = [&](const char* key, const char* types) {
    Json changed = hf_config;
    changed[key] = Json::parse(types);
    return changed;
  };
  const Config config = config_of(family, hf_config, "test", {});
  EXPECT_EQ(config.moe.first_dense, 1);
  EXPECT_EQ(config.model.attention, AttentionPattern::indexed);
  const Json two = with("mlp_layer_types", R"(["dense", "dense", "sparse"])");
  EXPECT_EQ(config_of(family, two, "test", {}).moe.first_dense, 2);
  EXPECT_BAD_INPUT(config_of(family, with("mlp_layer_types", R"(["dense", "sparse", "dense"])"), "test", {}),
                   "mlp_layer_types: expected");
  EXPECT_BAD_INPUT(config_of(family, with("layer_types", R"(["indexed_attention", "full_attention"])"), "test", {}),
                   "layer_types: full_attention is not known");
}

// Only few families have code that rotates a part of each head.
TEST(FamilyConfig, RejectsPartialRotationIfUnsupported) {
  for (const char* name : {"llama", "mistral", "qwen3", "olmo2", "cohere", "mixtral", "deepseek_v3", "deepseek_v32"}) {
    SCOPED_TRACE(name);
    const Family& family = family_named(name);
    Json hf_config = config_of_case(name);
    Config half = config_of(family, hf_config, "test", {});
    hf_config["partial_rotary_factor"] = 0.5;
    EXPECT_BAD_INPUT(config_of(family, hf_config, "test", {}), "rotate whole heads");
    half.model.rope_fraction = 0.5;
    EXPECT_THROW(config_json(family, half, Json()), InputError);
  }
  Json local = config_of_case("gemma3");
  local["rope_parameters"]["sliding_attention"]["partial_rotary_factor"] = 0.5;
  EXPECT_BAD_INPUT(config_of(family_named("gemma3_text"), local, "test", {}), "rotate whole heads");
}

// An absent key means the family's default, not ours.
TEST(FamilyConfig, UsesTheRotaryFractionOfTheFamily) {
  const std::pair<const char*, double> defaults[] = {{"nemotron", 0.5}, {"gpt_neox", 0.25}, {"phi3", 1}};
  for (const auto& [name, otherwise] : defaults) {
    SCOPED_TRACE(name);
    const Family& family = family_named(name);
    Json hf_config = config_of_case(name);
    hf_config["hidden_size"] = 64;
    hf_config["num_attention_heads"] = 4;
    hf_config["num_key_value_heads"] = 4;
    hf_config["head_dim"] = 16;
    hf_config["rope_parameters"] = Json{{"rope_theta", 10000.0}, {"rope_type", "default"}};
    EXPECT_EQ(config_of(family, hf_config, "test", {}).model.rope_fraction, otherwise);
    // An export is read back with its meaning, also by transformers. It has every value that
    // differs from that default.
    for (const double fraction : {0.25, 0.5, 1.0}) {
      Config config = config_of(family, hf_config, "test", {});
      config.model.rope_fraction = fraction;
      const Json fresh = config_json(family, config, Json());
      EXPECT_EQ(config_of(family, fresh, "test", {}).model.rope_fraction, fraction);
      const Json* written = fresh.find(family.name == "gpt_neox" ? "rotary_pct" : "partial_rotary_factor");
      EXPECT_EQ(written ? written->get<double>() : otherwise, fraction);
    }
  }
}

// If the number of rotated elements is odd, transformers rotates one more.
TEST(FamilyConfig, RejectsOddRotations) {
  const Family& family = family_named("nemotron");
  Json hf_config = config_of_case("nemotron");
  hf_config["rope_parameters"] = Json();
  hf_config["head_dim"] = 10;
  hf_config["partial_rotary_factor"] = 0.5;
  EXPECT_BAD_INPUT(config_of(family, hf_config, "test", {}), "5 of 10 elements of a head are rotated");
  hf_config["partial_rotary_factor"] = 0.4;
  Config config = config_of(family, hf_config, "test", {});
  config.model.rope_fraction = 0.5;
  EXPECT_THROW(config_json(family, config, Json()), InputError);
}

// The greedy choice of DeepSeek-V2 is over all experts, whatever the groups are.
TEST(FamilyConfig, IgnoresGroupsWithGreedyChoice) {
  const Family& family = family_named("deepseek_v2");
  Json hf_config = config_of_case("deepseek_v2");
  Config config = config_of(family, hf_config, "test", {});
  EXPECT_EQ(config.moe.groups, 3);
  EXPECT_EQ(config_json(family, config, Json())["topk_method"], Json("group_limited_greedy"));
  hf_config["topk_method"] = "greedy";
  config = config_of(family, hf_config, "test", {});
  EXPECT_EQ(config.moe.groups, 1);
  EXPECT_EQ(config.moe.topk_groups, 1);
  EXPECT_EQ(config_json(family, config, hf_config)["topk_method"], Json("greedy"));
}

// YaRN has two factors with latent attention: of the scores, and of cos and sin. DeepSeek has two
// numbers for them.
TEST(FamilyConfig, ConvertsLatentYarnFactors) {
  const std::string file = std::string(MODELS) + "/deepseek-v3.ini";
  const Config published = parse_config(read_file(file), file);
  const Json rope = config_json(family_named("deepseek_v3"), published, Json())["rope_scaling"];
  EXPECT_EQ(rope["mscale"].get<double>(), 1);  // as in DeepSeek-V3
  EXPECT_EQ(rope["mscale_all_dim"].get<double>(), 1);
  EXPECT_FALSE(rope.contains("attention_factor"));
  const auto factor = [](double m) { return 0.1 * m * std::log(40.0) + 1; };
  for (const double scale : {0.05, 0.09, 0.3})
    for (const double rotary : {0.0, 0.8, 1.0, 1.7}) {
      Config config = published;
      config.model.attention_scale = scale;
      config.model.rope_attention_factor = rotary;
      const Json hf_config = config_json(
          family_named("deepseek_v2"),
          [&] {
            Config v2 = config;
            v2.moe.score = Score::softmax;
            v2.moe.group_score = GroupScore::max;
            v2.moe.renormalize = Renormalize::off;
            return v2;
          }(),
          Json());
      // The formulas of transformers.
      const Json& scaling = hf_config["rope_scaling"];
      const double all = scaling["mscale_all_dim"].get<double>();
      EXPECT_NEAR(factor(all) * factor(all) / std::sqrt(192.0), scale, 1e-10);
      const double applied = scaling.contains("attention_factor") ? scaling["attention_factor"].get<double>()
                             : scaling.contains("mscale") ? factor(scaling["mscale"].get<double>()) / factor(all)
                                                          : factor(1);
      EXPECT_NEAR(applied, rotary > 0 ? rotary : factor(1), 1e-10);
    }
  // Without an attention_scale, the key is absent.
  Config plain = published;
  plain.model.attention_scale = 0;
  EXPECT_FALSE(config_json(family_named("deepseek_v3"), plain, Json())["rope_scaling"].contains("mscale_all_dim"));
}

// One clear error for a value that a family's tables cannot express.
TEST(FamilyConfig, RefusesWhatItCannotExpress) {
  struct Refused {
    const char *name, *key, *value, *message;
  };
  const Refused refused[] = {
      {"gemma", "hidden_activation", "\"silu\"", "hidden_activation = \"silu\": of gemma models, only"},
      {"arcee", "rope_parameters", "{\"rope_type\": \"spiral\"}", "a rope scaling of type spiral is not known"},
      {"arcee", "partial_rotary_factor", "0.5", "rotate whole heads"},
      {"helium_bias", "mlp_bias", "true", "these biases cannot be combined"},
      {"seed_oss", "mlp_bias", "true", "attention_out_bias = false with mlp_bias = true: these biases cannot be"},
      {"phi", "qk_layernorm", "true", "qk_layernorm = true: of phi models, only false can be read"},
      {"smollm3_window", "use_sliding_window", "false", "this needs use_sliding_window = true"},
      {"smollm3", "no_rope_layers", "[1, 0]", "no_rope_layers has 2 entries, and num_hidden_layers is 5"},
      {"olmo3_4x_keys", "rope_theta", "null", "it has no rope_theta: transformers 4 takes 10000"},
      {"olmo3_4x_keys", "rope_theta", "1000", "transformers 5 takes 500000 for layers with a window"},
      {"gemma3", "attn_logit_softcapping", "30", "of gemma3_text models, only null, 0, 0.0 can be read"},
      {"gemma3", "rope_scaling", "{\"factor\": 2}", "it has rope_parameters and rope_scaling: remove the wrong one"},
      {"ernie4_5_moe", "use_bias", "true", "use_bias = true: of ernie4_5_moe models, only false can be read"},
      {"ernie4_5_moe", "moe_layer_interval", "0", "moe_layer_interval = 0: expected 1 to 10000"},
      {"ernie4_5_moe", "moe_layer_start_index", "1000000000000", "moe_layer_start_index = 1000000000000: expected 0"},
      {"dots1", "n_shared_experts", "null", "it has no n_shared_experts"},
      {"granite", "logits_scaling", "0", "logits_scaling = 0: expected more than 0"},
      {"hunyuan_v1_moe", "moe_topk", "[1, 2]", "moe_topk = [1,2]: only a number, or the same one for each layer"},
      {"hunyuan_v1_moe", "num_experts", "null", "it has no num_experts"},
      {"apertus", "hidden_act", "\"silu\"", "hidden_act = \"silu\": of apertus models, only \"xielu\" can be read"},
      {"led", "attention_window", "[4, 6]", "attention_window = [4,6]: only one window of all layers can be read"},
      {"bart", "tie_word_embeddings", "false", "tie_word_embeddings = false: of bart models, only true can be read"},
      {"led", "attention_window", "5", "attention_window = 5: expected even numbers from 2 on"},
      {"led", "attention_window", "[]", "attention_window = []: expected the window of each layer"},
  };
  for (const Refused& r : refused) {
    SCOPED_TRACE(r.message);
    Json hf_config = config_of_case(r.name);
    hf_config[r.key] = Json::parse(r.value);
    EXPECT_BAD_INPUT(config_of(family_of(hf_config), hf_config, "test", {}), r.message);
  }
  for (const char* name : {"gpt_oss", "apertus"}) {
    Json published = config_of_case(name);
    published["rope_parameters"] = Json();
    EXPECT_NO_THROW(config_of(family_of(published), published, "test", {}));
    published["rope_scaling"] = Json();
    EXPECT_BAD_INPUT(config_of(family_of(published), published, "test", {}), "rope_scaling = null: transformers 4 has");
  }
  Json apertus = config_of_case("apertus");
  apertus["rope_parameters"] = Json();
  apertus["rope_theta"] = 1000;
  EXPECT_BAD_INPUT(config_of(family_of(apertus), apertus, "test", {}), "transformers 5 takes 12000000");
  Json exaone = config_of_case("exaone4");
  exaone["sliding_window_pattern"] = "LLLG";
  EXPECT_NO_THROW(config_of(family_of(exaone), exaone, "test", {}));
  exaone["layer_types"] = Json();
  EXPECT_BAD_INPUT(config_of(family_of(exaone), exaone, "test", {}), "this needs layer_types, too");
}

// The length of the text of a training sample is no part of an encoder-decoder. config.json has no
// number of global tokens.
TEST(FamilyConfig, OfLedHasTheLengthsOfBothStacksAndOneGlobalToken) {
  const Family& led = family_named("led");
  const Json hf_config = config_of_case("led");
  const Config config = config_of(led, hf_config, "test", {"--model.seq_len=9", "--encoder.window=4"});
  EXPECT_EQ(config.encoder_length(), 48);
  const Json exported = config_json(led, config, hf_config);
  EXPECT_EQ(exported["max_encoder_position_embeddings"].get<Index>(), 48);
  EXPECT_EQ(exported["max_decoder_position_embeddings"].get<Index>(), 40);
  EXPECT_EQ(exported["attention_window"].get<Index>(), 6);
  Json by_default = hf_config;
  by_default["attention_window"] = Json();
  EXPECT_EQ(config_of(led, by_default, "test", {}).stacks.at(0).model.window, 257);
  const Config two = config_of(led, hf_config, "test", {"--encoder.global_tokens=2"});
  EXPECT_BAD_INPUT(config_json(led, two, hf_config), "cannot express encoder.global_tokens = 2 (it would be 1)");
  const Config narrow = config_of(led, hf_config, "test", {"--encoder.window=1"});
  EXPECT_BAD_INPUT(config_json(led, narrow, hf_config), "encoder.window = 1: a led model needs 2 or more");
}

// An encoder-decoder whose sizes are those of [model] for both stacks.
TEST(FamilyConfig, OfPairsTakesTheSizesOfBothStacksFromModel) {
  const Config config = parse_config("", "test",
                                     {"--model.kind=encoder_decoder",
                                      "--model.layers=2",
                                      "--model.d_model=24",
                                      "--model.heads=4",
                                      "--model.d_ff=40",
                                      "--model.vocab=37",
                                      "--model.seq_len=32",
                                      "--model.norm=layernorm",
                                      "--model.norm_position=post",
                                      "--model.ffn=gelu",
                                      "--model.position=learned",
                                      "--model.embedding_norm=true",
                                      "--model.bias=all",
                                      "--model.output_bias=true",
                                      "--model.tie_embeddings=true",
                                      "--model.start_token=2",
                                      "--encoder.seq_len=40",
                                      "--encoder.attention=longformer",
                                      "--encoder.window=4",
                                      "--encoder.global_projections=true",
                                      "--decoder.seq_len=24"});
  const Json exported = config_json(family_named("led"), config, Json());
  EXPECT_EQ(exported["encoder_attention_heads"].get<Index>(), 4);
  EXPECT_EQ(exported["decoder_ffn_dim"].get<Index>(), 40);
  Config other = config;
  other.stacks.at(1).model.position = Position::none;
  EXPECT_BAD_INPUT(config_json(family_named("led"), other, Json()), "cannot express decoder.position = none");
}

// ERNIE's files have multi-token prediction, which is not read. Other surplus tensors are errors.
TEST(FamilyConfig, IgnoresTensorsOfMultiTokenPrediction) {
  for (const auto& [surplus, is_read] : {std::pair{"model.mtp_block.0.weight", true}, {"model.other.weight", false}}) {
    const TempFolder temp;
    Json golden = golden_case("ernie4_5_moe");
    golden["tensors"][surplus] = Json::array({3});
    write_model(temp.path(), golden);
    const FamilyModel model = open_family_model(temp.path(), {});
    if (is_read)
      EXPECT_NO_THROW(FamilyValues(temp.path(), model));
    else
      EXPECT_BAD_INPUT(FamilyValues(temp.path(), model), "is more than the model of config.json has");
  }
}

// Returns the data of a tensor in the bytes of a safetensors file.
std::span<char> tensor_bytes(std::string& bytes, const std::string& name) {
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  const Json header = Json::parse(bytes.substr(8, header_bytes));
  const auto offsets = header[name]["data_offsets"].get<std::vector<std::size_t>>();
  return std::span(bytes).subspan(8 + header_bytes).subspan(offsets[0], offsets[1] - offsets[0]);
}

// The constants of xIELU stand in the files. Our formula has the same ones.
TEST(FamilyConfig, RefusesOtherConstantsOfXielu) {
  const TempFolder temp;
  write_model(temp.path(), golden_case("apertus"));
  const FamilyModel model = open_family_model(temp.path(), {});
  EXPECT_NO_THROW(FamilyValues(temp.path(), model));
  const fs::path file = temp.path() / "model.safetensors";
  std::string bytes = read_file(file);
  const float other = 0.75f;
  std::memcpy(tensor_bytes(bytes, "model.layers.1.mlp.act_fn.beta").data(), &other, sizeof other);
  write_file(file, bytes);
  EXPECT_BAD_INPUT(FamilyValues(temp.path(), model), "model.layers.1.mlp.act_fn.beta is 0.75, expected 0.5");
}

// transformers 5 writes tie_word_embeddings = true for T5 v1.1 and mT5, and an output of its own.
// Values of the output that are the embedding's own leave it tied.
TEST(FamilyConfig, UntiesAnOutputWithOtherValues) {
  for (const char* name : {"llama", "t5_v1_1", "mt5"}) {
    SCOPED_TRACE(name);
    const TempFolder temp;
    Json golden = golden_case(name);
    golden["config"]["tie_word_embeddings"] = true;
    if (name == std::string("t5_v1_1")) golden["config"]["scale_decoder_outputs"] = false;
    write_model(temp.path(), golden);
    const FamilyModel model = open_family_model(temp.path(), {});
    EXPECT_FALSE(model.config.model.tie_embeddings);
    FamilyValues values(temp.path(), model);
    const auto self = make_comm_self();
    Engine engine(model.config, model.vocab, make_cpu(), make_mesh(*self, Layout{}), false);
    engine.store().fill(values);
    expect_logits(engine, golden, 1e-5);
  }
  const TempFolder temp;
  Json golden = golden_case("gemma2");
  golden["tensors"]["lm_head.weight"] = golden["tensors"]["model.embed_tokens.weight"];
  write_model(temp.path(), golden);
  EXPECT_FALSE(open_family_model(temp.path(), {}).config.model.tie_embeddings);
  const fs::path file = temp.path() / "model.safetensors";
  std::string bytes = read_file(file);
  std::ranges::copy(tensor_bytes(bytes, "model.embed_tokens.weight"), tensor_bytes(bytes, "lm_head.weight").begin());
  write_file(file, bytes);
  EXPECT_TRUE(open_family_model(temp.path(), {}).config.model.tie_embeddings);
  // The factor of the logits follows the key, and would be wrong without it.
  Json switched = golden_case("switch_transformers");
  switched["tensors"]["lm_head.weight"] = switched["tensors"]["shared.weight"];
  write_model(temp.path(), switched);
  EXPECT_BAD_INPUT(open_family_model(temp.path(), {}), "lm_head.weight has other values than the embedding");
}

// Rotary keys that stand in two places, in the order in which transformers 5 reads them.
TEST(FamilyConfig, ReadsRotaryKeysAsTransformers) {
  const auto llama = [](const std::string& keys) {
    Json hf_config = config_of_case("llama");
    hf_config["rope_parameters"] = Json();
    const Json changed = Json::parse("{" + keys + "}");
    for (const Json::Member& m : changed.members()) hf_config[m.name] = m.value;
    return config_of(family_named("llama"), hf_config, "test", {}).model;
  };
  // The length of a dynamic scaling is max_position_embeddings.
  EXPECT_EQ(llama(R"("max_position_embeddings": 40, "rope_scaling": {"rope_type": "dynamic", "factor": 2,
                     "original_max_position_embeddings": 8})")
                .rope_original_length,
            40);
  // A flat base counts if rope_parameters has none.
  EXPECT_EQ(llama(R"("rope_theta": 77, "rope_parameters": {"rope_type": "linear", "factor": 2})").rope_theta, 77);
  EXPECT_EQ(llama(R"("rope_theta": 77, "rope_parameters": {"rope_type": "default", "rope_theta": 5})").rope_theta, 5);
  // rope_scaling counts for more than rope_parameters.
  const auto both = llama(R"("rope_theta": 77, "rope_scaling": {"rope_type": "linear", "factor": 4},
                             "rope_parameters": {"rope_type": "default", "rope_theta": 5})");
  EXPECT_EQ(both.rope_theta, 77);
  EXPECT_EQ(both.rope_factor, 4);
  EXPECT_BAD_INPUT(llama(R"("original_max_position_embeddings": 30, "rope_scaling": {"rope_type": "yarn", "factor": 4,
                            "original_max_position_embeddings": 10})"),
                   "original_max_position_embeddings is 30, and 10 in the scaling");
  Json phi = config_of_case("phi");
  phi["partial_rotary_factor"] = 0.25;
  phi["rope_parameters"] = Json::parse(R"({"rope_type": "default", "partial_rotary_factor": 0.5})");
  EXPECT_EQ(config_of(family_named("phi"), phi, "test", {}).model.rope_fraction, 0.5);
  Json gemma = config_of_case("gemma3");
  gemma["rope_theta"] = 77;
  gemma["rope_local_base_freq"] = 55;
  gemma["rope_parameters"] = Json::parse(R"({"full_attention": {"rope_type": "linear", "factor": 2},
                                             "sliding_attention": {"rope_type": "default"}})");
  const Config read = config_of(family_named("gemma3_text"), gemma, "test", {});
  std::set<double> bases;
  for (Index layer = 0; layer < read.model.layers; ++layer) bases.insert(read.model_of(layer).rope_theta);
  EXPECT_EQ(bases, (std::set<double>{55, 77}));
}

// These families have a key for the types of layers that their code does not read.
TEST(FamilyConfig, IgnoresLayerTypesWhereTransformersDoes) {
  for (const char* name : {"mistral", "mixtral", "phi3", "starcoder2"}) {
    SCOPED_TRACE(name);
    Json hf_config = config_of_case(name);
    hf_config["sliding_window"] = 4;
    Json types = Json::array();
    for (Index i = 0; i < hf_config["num_hidden_layers"].get<std::int64_t>(); ++i)
      types.push_back(i == 0 ? "full_attention" : "sliding_attention");
    hf_config["layer_types"] = types;
    const Family& family = family_of(hf_config);
    Config config = config_of(family, hf_config, "test", {});
    for (Index layer = 0; layer < config.model.layers; ++layer) EXPECT_EQ(config.model_of(layer).window, 4);
  }
}

// A family of the other kind is refused, and not an error of this program.
TEST(FamilyConfig, RefusesModelsOfAnotherKind) {
  const Config llama = config_of(family_named("llama"), config_of_case("llama"), "test", {});
  for (const char* name : {"t5", "mt5", "switch_transformers", "bart", "led"})
    EXPECT_BAD_INPUT(config_json(family_named(name), llama, Json()),
                     fmt::format("{} models are encoder-decoders, and this is model.kind = decoder", name));
  const Config t5 = config_of(family_named("t5"), config_of_case("t5"), "test", {});
  EXPECT_BAD_INPUT(config_json(family_named("llama"), t5, Json()), "llama models are decoders or encoders");
}

// An export compares values that both stacks replace by stack alone.
TEST(FamilyConfig, IgnoresValuesThatTheStacksReplace) {
  const Json hf_config = config_of_case("switch_transformers");
  const Family& family = family_named("switch_transformers");
  const Config config = config_of(family, hf_config, "test", {"--moe.every=3", "--moe.first_dense=1"});
  EXPECT_EQ(config.stacks[0].moe.every, config_of(family, hf_config, "test", {}).stacks[0].moe.every);
  EXPECT_NO_THROW(config_json(family, config, Json()));
  const Config t5 =
      config_of(family_named("t5"), config_of_case("t5"), "test", {"--encoder.every=2", "--model.seq_len=9"});
  EXPECT_NO_THROW(config_json(family_named("t5"), t5, Json()));
}

// ---- absent keys, against tests/golden/family_defaults.json ----

// Keys of our configuration in which two models differ.
std::string differing_keys(const Config& a, const Config& b) {
  std::string keys;
  for (const ResumePolicy policy : {ResumePolicy::must_match, ResumePolicy::report, ResumePolicy::reorders_samples})
    for (const KeyDifference& d : differences(a, b, policy)) keys += d.key + " = " + d.here + " and " + d.there + "; ";
  return keys;
}

std::string error_of_config(const Family& family, const Json& hf_config) {
  try {
    config_of(family, hf_config, "test", {});
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

// Small models of a family. If the family has such keys, also with windows and with a
// load-balancing loss.
std::vector<Config> models_of(const Family& family, const Json& defaults) {
  std::vector<Config> models;
  for (const Json& c : cases()) {
    const Json& config = c["config"];
    if (config["model_type"] != Json(family.name)) continue;
    models.push_back(config_of(family, config, "test", {}));
    Json other = config;
    if (defaults.contains("use_sliding_window")) {
      other["use_sliding_window"] = true;
      other["sliding_window"] = 4;
      other["max_window_layers"] = 1;
      other["layer_types"] = Json();
    }
    if (defaults.contains("router_aux_loss_coef")) {
      other["output_router_logits"] = true;
      other["router_aux_loss_coef"] = 0.05;
    }
    if (other != config) models.push_back(config_of(family, other, "test", {}));
  }
  return models;
}

// Calls body(family, models, key, default) for the keys of both versions, once if both have the
// same default.
template <class F>
void for_each_default(F body) {
  const Json table = Json::parse(read_file(std::string(GOLDEN) + "/family_defaults.json"));
  for (const Family& family : families()) {
    SCOPED_TRACE(family.name);
    const Json& five = table["5"][family.name];
    const std::vector<Config> models = models_of(family, five);
    ASSERT_FALSE(models.empty());
    for (const char* version : {"4", "5"}) {
      SCOPED_TRACE(version);
      const Json* keys = table[version].find(family.name);
      if (!keys) continue;  // younger than this version
      for (const Json::Member& m : keys->members()) {
        const Json* same = five.find(m.name);
        if (version == std::string("4") && same && *same == m.value) continue;
        SCOPED_TRACE(m.name);
        body(family, models, m.name, m.value);
      }
    }
  }
}

// A key that an export leaves out means the same to transformers and to us.
TEST(FamilyDefaults, AreTheOnlyKeysLeftOutByExports) {
  int left_out = 0;
  for_each_default(
      [&](const Family& family, const std::vector<Config>& models, const std::string& key, const Json& value) {
        for (const Config& model : models) {
          Json exported = config_json(family, model, Json());
          if (exported.contains(key)) continue;
          exported[key] = value;
          EXPECT_EQ(differing_keys(model, config_of(family, exported, "test", {})), "");
          ++left_out;
        }
      });
  EXPECT_GT(left_out, 20);
}

// A model without a key is refused, or is the model that transformers reads.
TEST(FamilyDefaults, ApplyToAbsentKeys) {
  int refused = 0, read = 0;
  for_each_default(
      [&](const Family& family, const std::vector<Config>& models, const std::string& key, const Json& value) {
        for (const Config& model : models) {
          const Json exported = config_json(family, model, Json());
          Json absent = Json::object();
          for (const Json::Member& m : exported.members())
            if (m.name != key) absent.append(m.name, m.value);
          Json with = absent;
          with[key] = value;
          // Some defaults do not fit the other keys of a small model. Both are then refused with
          // the same error.
          const std::string error = error_of_config(family, absent);
          if (!error.empty()) {
            EXPECT_TRUE(has(error, key) || error == error_of_config(family, with)) << error;
            ++refused;
            continue;
          }
          ++read;
          EXPECT_EQ(differing_keys(config_of(family, absent, "test", {}), config_of(family, with, "test", {})), "");
        }
      });
  EXPECT_GT(refused, 200);
  EXPECT_GT(read, 200);
}

// Every key that affects the computation is read: an invalid value of it is refused.
TEST(FamilyDefaults, AreAllReadByTheImport) {
  Json nonsense = Json::object();
  nonsense["rope_type"] = "nonsense";
  for_each_default([&](const Family& family, const std::vector<Config>& models, const std::string& key, const Json&) {
    EXPECT_TRUE(std::any_of(models.begin(), models.end(), [&](const Config& model) {
      Json changed = config_json(family, model, Json());
      changed[key] = nonsense;
      return !error_of_config(family, changed).empty();
    }));
  });
}

// A dense model that is upcycled to one with experts computes the same logits.
TEST(Upcycling, KeepsTheLogitsOfTheDenseModel) {
  for (const char* name : {"llama", "gpt2", "gemma2", "bloom"})
    for (const char* how :
         {"experts=4,top_k=2", "experts=3,top_k=1", "experts=8,top_k=4,parts=2", "experts=4,top_k=4,parts=4"}) {
      SCOPED_TRACE(std::string(name) + " " + how);
      const auto golden =
          std::find_if(cases().begin(), cases().end(), [&](const Json& c) { return c["name"] == Json(name); });
      ASSERT_NE(golden, cases().end());
      const TempFolder temp;
      write_model(temp.path() / "model", *golden);
      const FamilyModel model = open_family_model(temp.path() / "model", {});
      FamilyValues dense(temp.path() / "model", model);
      const Upcycling upcycling = parse_upcycling(how);
      const Config config = upcycled_config(model.config, upcycling, {});
      const auto values = upcycled_values(dense, dense.params(), upcycling, 7);
      const auto self = make_comm_self();
      Engine engine(config, model.vocab, make_cpu(), make_mesh(*self, Layout{}), false);
      engine.store().fill(*values);
      expect_logits(engine, *golden, 1e-4);
    }
}

TEST(Upcycling, RejectsIndivisibleSizes) {
  for (const char* how :
       {"", "experts=4", "top_k=2", "experts=4,top_k=2,parts", "experts=4,top_k=2,parts=0", "experts=4,top_k=3,parts=2",
        "experts=5,top_k=2,parts=2", "experts=4x,top_k=2", "experts=99999999999999999999,top_k=2"})
    EXPECT_THROW(parse_upcycling(how), InputError) << how;
  const Config dense = parse_config("[model]\nd_ff = 50\n", "test");
  EXPECT_THROW(upcycled_config(dense, {8, 4, 4}, {}), InputError);
  EXPECT_THROW(upcycled_config(upcycled_config(dense, {4, 2, 2}, {}), {4, 2, 1}, {}), InputError);
  EXPECT_EQ(upcycled_config(dense, {4, 2, 2}, {}).moe.d_ff, 25);
}

// Experts have the FFN of the stacks of an encoder-decoder, and not that of [model].
TEST(Upcycling, TakesTheFfnOfTheStacks) {
  const auto dense = [](const std::string& stacks) {
    return parse_config("[model]\nkind = encoder_decoder\nd_ff = 64\nffn = relu\n" + stacks, "test");
  };
  const Upcycling upcycling{4, 2, 2};
  const Config both = dense("[encoder]\nd_ff = 96\nffn = swiglu\n[decoder]\nd_ff = 96\nffn = swiglu\n");
  const Config experts = upcycled_config(both, upcycling, {});
  EXPECT_EQ(experts.moe.d_ff, 48);
  EXPECT_EQ(experts.moe.ffn, "swiglu");

  const Config wider = dense("[encoder]\nd_ff = 96\n");
  EXPECT_BAD_INPUT(upcycled_config(wider, upcycling, {}), "decoder layer 0 has d_ff = 64 and ffn = relu");
  EXPECT_EQ(upcycled_config(wider, upcycling, {"--decoder.experts=0"}).moe.d_ff, 48);
  EXPECT_EQ(upcycled_config(wider, upcycling, {"--encoder.experts=0"}).moe.d_ff, 32);
  EXPECT_BAD_INPUT(upcycled_config(dense("[decoder]\nffn = gelu\n"), upcycling, {}), "d_ff = 64 and ffn = gelu");
  EXPECT_BAD_INPUT(upcycled_config(dense(""), upcycling, {"--moe.d_ff=16"}), "no experts with moe.d_ff = 16");
}

// For any value in config.json, the model is read or there is one clear error. Nothing larger than
// the files is allocated.
TEST(HostileConfig, IsReadOrRejectedForAnyValue) {
  constexpr const char* values[] = {"-1",    "0",     "1000000", "1000000000000", "18446744073709551616",
                                    "1e308", "\"x\"", "[[]]"};
  int refused = 0, read = 0;
  for (const char* name : {"gemma3", "phi3_long", "qwen3_moe", "deepseek_v3", "deepseek_v32", "smollm3_window",
                           "exaone4", "ernie4_5_moe_layers", "minimax_m2_published"}) {
    const auto golden =
        std::find_if(cases().begin(), cases().end(), [&](const Json& c) { return c["name"] == Json(name); });
    ASSERT_NE(golden, cases().end());
    const TempFolder temp;
    write_model(temp.path(), *golden);
    const auto check = [&](const Json& config, const std::string& what) {
      write_file(temp.path() / "config.json", json_text(config));
      try {
        const FamilyModel model = open_family_model(temp.path(), {});
        const FamilyValues all(temp.path(), model);
        ++read;
      } catch (const InputError& e) {
        EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << what;
        ++refused;
      } catch (const std::exception& e) {
        ADD_FAILURE() << name << ": " << what << ": " << e.what();
      }
    };
    const Json whole = (*golden)["config"];
    for (const Json::Member& member : whole.members())
      for (const char* value : values) {
        Json changed = whole;
        changed[member.name] = Json::parse(value);
        check(changed, member.name + " = " + value);
        if (!member.value.is_object()) continue;
        for (const Json::Member& inner : member.value.members()) {
          changed = whole;
          changed[member.name][inner.name] = Json::parse(value);
          check(changed, member.name + "." + inner.name + " = " + value);
        }
      }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(read, 100);
}

INSTANTIATE_TEST_SUITE_P(Cases, ImportedFamily, testing::ValuesIn(numbers_of_cases()), name_of_case);

}  // namespace
}  // namespace sy
