#include "src/families/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "dist/machine_groups.h"
#include "dist/runtime.h"
#include "src/families/export_tokenizer.h"
#include "src/families/import.h"
#include "src/families/peft.h"
#include "src/families/settings.h"
#include "src/families/tensors.h"
#include "src/io/manifest.h"
#include "src/io/new_folder.h"
#include "src/io/safetensors.h"
#include "src/params/lora.h"
#include "src/system/digest.h"
#include "src/system/files.h"
#include "src/text/table.h"

namespace sy {
namespace fs = std::filesystem;

namespace {

constexpr const char *file_list_name = "files.json", *filler_folder_name = "fillers", *config_name = "config.json",
                     *single_name = "model.safetensors", *weight_index_name = "model.safetensors.index.json";

// Digests of the imported files, in the format of sha256sum. A line has 64 hexadecimal digits, two
// spaces and a name.
constexpr const char* digests_name = "SHA256SUMS";
constexpr const char* filler_file_name = "fillers/model.safetensors";

std::map<std::string, std::string> read_digests(const fs::path& file) {
  std::map<std::string, std::string> digests;
  std::string_view text;
  const std::string content = read_file(file);
  for (text = content; !text.empty();) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const std::string_view digest = line.substr(0, 64), name = line.substr(std::min<std::size_t>(line.size(), 66));
    const bool is_valid = line.size() < text.size() && digest.find_first_not_of("0123456789abcdef") == digest.npos &&
                          line.substr(64 < line.size() ? 64 : line.size(), 2) == "  ";
    if (!is_valid || !(is_plain_name(name) || name == filler_file_name) || !digests.emplace(name, digest).second)
      bad_input("{} is damaged: import the model again", file.string());
    text.remove_prefix(line.size() + 1);
  }
  for (const char* name : {config_name, file_list_name})
    if (!digests.contains(name)) bad_input("{} is damaged: import the model again", file.string());
  return digests;
}

// ---- output files ----

struct OutputTensor {
  const FileTensor* tensor;
  const StoredType* type;
};
struct OutputFile {
  std::string name;
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  std::vector<OutputTensor> tensors;
};

// Throws InputError if a name in files.json is not a plain name, is used twice, or is reserved.
void check_file_names(const fs::path& list, const std::vector<OutputFile>& files) {
  std::set<std::string_view> names(std::begin(tokenizer_files), std::end(tokenizer_files));
  names.insert({config_name, weight_index_name});
  for (const OutputFile& file : files)
    if (!is_plain_name(file.name) || !names.insert(file.name).second)
      bad_input("{} names the file '{}', which cannot be one of an export's: import the model again", list.string(),
                visible(file.name));
}

// Returns files with the names, tensor order and types of the imported ones. Empty if the imported
// tensors are not exactly those of this model.
std::optional<std::vector<OutputFile>> as_imported(const Json& imported, const std::vector<FileTensor>& tensors,
                                                   const std::string& type) {
  std::map<std::string, const FileTensor*> by_name;
  for (const FileTensor& tensor : tensors) by_name[tensor.name] = &tensor;
  std::vector<OutputFile> files;
  std::size_t found = 0;
  for (const Json& file : imported.at("files")) {
    OutputFile out{file.at("name").get<std::string>(), {}, {}};
    for (const Json::Member& m : file.at("metadata").members()) out.metadata[m.name] = m.value.get<std::string>();
    for (const Json& entry : file.at("tensors")) {
      const auto it = by_name.find(entry.at("name").get<std::string>());
      if (it == by_name.end()) return {};
      const StoredType* stored = stored_type(type.empty() ? entry.at("type").get<std::string>() : type);
      if (!stored) return {};
      out.tensors.push_back({it->second, stored});
      found += !it->second->is_copy;
    }
    files.push_back(std::move(out));
  }
  if (found != static_cast<std::size_t>(std::ranges::count(tensors, false, &FileTensor::is_copy))) return {};
  return files;
}

// Distributes the tensors, in order, over files of about file_bytes.
std::vector<OutputFile> split_files(const std::vector<FileTensor>& tensors, const StoredType& type, Index file_bytes) {
  std::vector<OutputFile> files(1);
  Index bytes = 0;
  for (const FileTensor& tensor : tensors) {
    const Index tensor_bytes = tensor.elements() * type.bytes;
    if (bytes > 0 && bytes + tensor_bytes > file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().tensors.push_back({&tensor, &type});
    bytes += tensor_bytes;
  }
  for (std::size_t i = 0; i < files.size(); ++i)
    files[i].name =
        files.size() == 1 ? single_name : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
  return files;
}

std::string index_text(const std::vector<OutputFile>& files) {
  Json map = Json::object();
  Index bytes = 0;
  for (const OutputFile& file : files)
    for (const OutputTensor& t : file.tensors) {
      map.append(t.tensor->name, file.name);
      bytes += t.tensor->elements() * t.type->bytes;
    }
  return json_text({{"metadata", {{"total_size", bytes}}}, {"weight_map", map}});
}

// ---- values of the checkpoint ----

// Reads boxes of the parameters and of the routers' selection biases of a checkpoint.
class ExportedValues {
 public:
  ExportedValues(std::unique_ptr<ValueSource> weights, const TrainState& state, const std::vector<ParamSpec>& params)
      : weights_(std::move(weights)), state_(state), params_(params) {}

  void read(std::size_t param, const Box& box, std::vector<float>& values) const {
    const ParamSpec& spec = params_[param];
    values.resize(static_cast<std::size_t>(box.elements()));
    if (!spec.name.ends_with(selection_bias)) return weights_->read(spec, box, values);
    const auto& ids = state_.experts.layer_ids;
    const Index row = std::find(ids.begin(), ids.end(), *spec.layer) - ids.begin();
    const Index first = row * state_.experts.experts + box.begin[0];
    const bool known = first + box.size[0] <= std::ssize(state_.router_bias);
    for (Index i = 0; i < box.size[0]; ++i)
      values[static_cast<std::size_t>(i)] = known ? state_.router_bias[static_cast<std::size_t>(first + i)] : 0.0f;
  }

 private:
  std::unique_ptr<ValueSource> weights_;
  const TrainState& state_;
  const std::vector<ParamSpec>& params_;
};

// Splits `box` into boxes of at most chunk_elements elements, and calls f for each.
template <class F>
void for_boxes(const Box& box, F f) {
  const Index n = box.elements();
  for (Index begin = 0; begin < n; begin += chunk_elements)
    for (Box chunk : boxes_of_range(box.size, {begin, std::min(n, begin + chunk_elements)})) {
      for (int d = 0; d < chunk.begin.size(); ++d) chunk.begin[d] += box.begin[d];
      f(chunk);
    }
}

void write_tensor(const OutputTensor& out, const ExportedValues& values, const StoredTensor* filler, std::byte* to) {
  const Index bytes = out.type->bytes;
  // Elements that no parameter covers are copied from the imported file, or have one value.
  if (filler && filler->shape == out.tensor->shape) {
    if (filler->type == out.type->name) {
      std::memcpy(to, filler->data, static_cast<std::size_t>(filler->bytes));
    } else {
      std::vector<float> all(static_cast<std::size_t>(out.tensor->elements()));
      stored_type(filler->type)->load(filler->data, 1, std::ssize(all), all.data());
      out.type->store(all.data(), std::ssize(all), to, 1);
    }
  } else if (out.tensor->constant != 0) {
    const std::vector<float> all(static_cast<std::size_t>(out.tensor->elements()),
                                 static_cast<float>(out.tensor->constant));
    out.type->store(all.data(), std::ssize(all), to, 1);
  }
  std::vector<float> host;
  for (const TensorMapping& mapping : out.tensor->mappings) {
    if (!mapping.param) continue;
    Box all;
    for (const MappedDim& dim : mapping.dims) {
      all.begin.push_back(dim.range.begin);
      all.size.push_back(dim.range.size());
    }
    for_boxes(all, [&](const Box& box) {
      values.read(*mapping.param, box, host);
      for_mapped_ranges(mapping, box, [&](Index first, Index offset, Index stride, Index n) {
        out.type->store(host.data() + first, n, to + offset * bytes, stride);
      });
    });
  }
}

// ---- the family ----

struct FamilyMatch {
  const Family* family;
  Json config;
  FamilyTensors tensors;
};

// Throws InputError if the family cannot express the model.
FamilyMatch try_family(const Family& family, const Config& config, const std::vector<ParamSpec>& params,
                       const Json& imported_config, std::string_view base) {
  const Json* type = imported_config.find("model_type");
  const bool is_imported = type && *type == Json(family.name);
  return {&family, config_json(family, config, is_imported ? imported_config : Json()),
          family_tensors(family, config, params, is_imported ? base : family.base)};
}

FamilyMatch choose_family(const Config& config, const std::vector<ParamSpec>& params, const std::string& name,
                          const Json& imported_config, std::string_view base) {
  if (!name.empty()) return try_family(family_named(name), config, params, imported_config, base);
  const Json* imported_type = imported_config.find("model_type");
  std::string why = "no family can express it";
  std::vector<const Family*> order;
  for (const Family& family : families())
    order.insert(imported_type && *imported_type == Json(family.name) ? order.begin() : order.end(), &family);
  for (const Family* family : order) try {
      return try_family(*family, config, params, imported_config, base);
    } catch (const InputError& e) {
      if (imported_type && family == order.front()) why = e.what();
    }
  bad_input(
      "export: the model is of no family of Hugging Face's that is known here: {}; --family NAME says why one does not fit",
      why);
}

void check_ones(const ExportedValues& values, const std::vector<ParamSpec>& params, const FamilyMatch& match) {
  std::vector<float> host;
  for (const std::size_t param : match.tensors.ones)
    for_boxes({Shape{0}, params[param].shape}, [&](const Box& box) {
      values.read(param, box, host);
      for (const float x : host)
        if (x != 1)
          bad_input("models of {} have no {}, which has values other than 1 here: it cannot be exported as one",
                    match.family->name, params[param].name);
    });
}

// Returns true if an indexer selects fewer tokens than a sequence has.
bool hides_tokens(const Config& config) {
  for (Index layer = 0; layer < config.num_blocks(); ++layer) {
    const Config::Model& m = config.model_of(layer);
    if (m.attention == AttentionPattern::indexed && m.index_topk < m.seq_len) return true;
  }
  return false;
}

// Returns the run whose import gives the names of the adapters' base model: this one, or the run
// with whose weights it began.
fs::path run_with_import(const fs::path& run, const fs::path& init_from) {
  const auto has_import = [](const fs::path& dir) { return file_exists(dir / huggingface_folder_name / config_name); };
  if (has_import(run) || init_from.empty()) return run;
  if (has_import(init_from)) return init_from;
  const std::optional<fs::path> of_step = run_of(init_from);
  return of_step && has_import(*of_step) ? *of_step : run;
}

Json read_imported_json(const fs::path& file) {
  if (!file_exists(file)) return Json::object();
  try {
    return Json::parse(standard_json(read_file(file)));
  } catch (const JsonError& e) {
    bad_input("{} cannot be read: {}: remove it, or import again", file.string(), e.what());
  }
}

}  // namespace

void save_imported_files(const fs::path& folder, const FamilyValues& values, const fs::path& run_dir) {
  const fs::path imported_dir = run_dir / huggingface_folder_name;
  make_folders(imported_dir);
  std::string digests;
  const auto save = [&](const char* name, const std::string& content) {
    write_file(imported_dir / name, content);
    digests += fmt::format("{}  {}\n", to_hex(sha256(content)), name);
  };
  save(config_name, read_file(folder / config_name));
  for (const char* name : tokenizer_files)
    if (file_exists(folder / name, Links::keep)) save(name, read_file(folder / name));
  Json files = Json::array();
  std::map<std::string, const FileTensor*> by_name;
  for (const FileTensor& tensor : values.tensors()) by_name[tensor.name] = &tensor;
  std::vector<StoredLayout> fillers;
  for (const StoredTensors::File& file : values.stored().files()) {
    Json entry{{"name", file.name}, {"metadata", Json::object()}, {"tensors", Json::array()}};
    for (const auto& [key, value] : file.metadata) entry["metadata"].append(key, value);
    for (const std::string& name : file.tensors) {
      const auto it = by_name.find(name);
      if (it == by_name.end()) continue;  // an ignored tensor
      const StoredTensor& stored = *values.stored().find(name);
      entry["tensors"].push_back({{"name", name}, {"type", stored.type}});
      const auto& mappings = it->second->mappings;
      if (std::any_of(mappings.begin(), mappings.end(), [](const TensorMapping& mapping) { return !mapping.param; }))
        fillers.push_back({name, stored_type(stored.type)->name, stored.shape});
    }
    files.push_back(std::move(entry));
  }
  if (!fillers.empty()) {
    const StoredHeader header = stored_header(fillers, {});
    make_folders(imported_dir / filler_folder_name);
    std::string content = header.bytes;
    for (const StoredLayout& filler : fillers) {
      const StoredTensor& stored = *values.stored().find(filler.name);
      content.append(reinterpret_cast<const char*>(stored.data), static_cast<std::size_t>(stored.bytes));
    }
    save(filler_file_name, content);
  }
  save(file_list_name, json_text({{"files", files}}));
  write_file(imported_dir / digests_name, digests);
}

std::string check_imported(const fs::path& run_dir, const std::vector<std::string>& names) {
  const fs::path imported_dir = run_dir / huggingface_folder_name;
  if (!file_exists(imported_dir / digests_name, Links::keep)) {
    if (!file_exists(imported_dir / file_list_name)) return "";  // nothing was imported
    return fmt::format(
        "{} has no {}: an older version imported it, and its files are used unchecked; import the model again to have them "
        "checked",
        imported_dir.string(), digests_name);
  }
  const std::map<std::string, std::string> digests = read_digests(imported_dir / digests_name);
  std::vector<std::string> read(std::begin(tokenizer_files), std::end(tokenizer_files));
  if (names.empty()) read.emplace_back(filler_file_name);
  for (const std::string& name : read)
    if (!digests.contains(name) && file_exists(imported_dir / name, Links::keep))
      bad_input(
          "{} was not imported ({} does not list it): remove it or import the model again; if you added it on purpose, append its digest with "
          "sha256sum",
          (imported_dir / name).string(), (imported_dir / digests_name).string());
  for (const auto& [name, digest] : digests) {
    if (!names.empty() && std::find(names.begin(), names.end(), name) == names.end()) continue;
    const fs::path file = imported_dir / name;
    if (!is_file(file, Links::keep))
      bad_input("{} is missing or no regular file: import the model again", file.string());
    if (to_hex(sha256_file(file)) != digest)
      bad_input(
          "{} is not the file that was imported (its SHA-256 differs from {}): restore it or import the model again; if you "
          "changed it on purpose, correct its digest with sha256sum",
          file.string(), (imported_dir / digests_name).string());
  }
  return "";
}

void check_imported_tokenizer(const StoredTokenizer& tokenizer) {
  const fs::path folder = tokenizer.model.parent_path();
  if (folder.filename() == huggingface_folder_name)
    check_imported(folder.parent_path(), {std::begin(tokenizer_files), std::end(tokenizer_files)});
}

std::string export_checkpoint(Comm& world, const CheckpointFolder& checkpoint, const TrainState& state,
                              const Config& config, const fs::path& folder, const ExportOptions& options,
                              const std::function<void(Index, Index)>& progress) {
  const bool lead = world.rank() == 0;
  NewFolder output(folder, "export");
  const fs::path& dir = output.staging();
  std::optional<fs::path> run = run_of(checkpoint.path());
  Config full_config = without_lora(config);
  const std::vector<ParamSpec> params = model_tensors(full_config, state.vocab);
  // The configuration lacks the vocabulary size if the data set determined it.
  full_config.model.vocab = state.vocab;
  // The families know muP as a factor of the logits.
  full_config.model.logit_scale /= full_config.model.width_ratio();
  full_config.model.mup = false;
  full_config.model.mup_base_width = 0;
  FamilyMatch match{};
  std::vector<OutputFile> files;
  std::unique_ptr<ExportedValues> values;
  std::unique_ptr<StoredTensors> fillers;
  fs::path imported_dir;
  std::error_code error;
  std::string note;
  agree_on_errors(world, [&] {
    if (config.has_visible_prefix())
      bad_input(
          "the model has train.objective = prefix, and no family has attention that sees a prefix on both sides: "
          "export a model that was trained further with train.objective = causal (run.init_from)");
    // Both stages of indexers see sequences of index_topk tokens as a whole.
    if (config.trains_indexers_alone() && hides_tokens(config))
      bad_input(
          "the model has train.indexer = warmup, whose attention sees all tokens, and an exported model sees those of "
          "the largest scores: export a model that was trained further with train.indexer = sparse (run.init_from)");
    if (config.model.norm == NormKind::batchnorm)
      bad_input("the model has model.norm = batchnorm, and no family has batch norms: it cannot be exported");
    if (options.adapter && run) run = run_with_import(*run, config.run.init_from);
    imported_dir = run ? *run / huggingface_folder_name : fs::path();
    if (lead && run)
      if (const std::string warning = check_imported(*run); !warning.empty()) warn(warning);
    const Json imported_config = run ? read_imported_json(imported_dir / config_name) : Json::object();
    const Json imported_files = run ? read_imported_json(imported_dir / file_list_name) : Json::object();
    // If the imported names lack the family's base, so do the exported names.
    const Json* type = imported_config.find("model_type");
    bool bare = imported_files.contains("files");
    std::string_view base;
    for (const Family& family : families())
      if (type && *type == Json(family.name)) base = family.base;
    if (bare)
      for (const Json& file : imported_files.at("files"))
        for (const Json& tensor : file.at("tensors"))
          bare = bare && !tensor.at("name").get<std::string>().starts_with(base);
    match = choose_family(full_config, params, options.family, imported_config, bare ? std::string_view() : base);
    values = std::make_unique<ExportedValues>(
        options.average.empty() ? checkpoint_weights(checkpoint) : average_weights(options.average), state, params);
    check_ones(*values, params, match);
    if (!options.type.empty() && !stored_type(options.type))
      bad_input("export: --dtype {}: expected f32, bf16 or f16", options.type);
    if (options.adapter) {
      if (!lead) return;
      Config adapted = config;
      adapted.model.vocab = state.vocab;
      output.open();
      write_peft_adapter(match.tensors, params, adapted, *checkpoint_weights(checkpoint),
                         options.type.empty() ? "f32" : options.type, dir);
      if (!options.provenance.is_null()) write_file(dir / "provenance.json", json_text(options.provenance));
      return;
    }
    auto imported = imported_files.contains("files") ? as_imported(imported_files, match.tensors.tensors, options.type)
                                                     : std::nullopt;
    if (imported) check_file_names(imported_dir / file_list_name, *imported);
    const StoredType& stored_dtype = *stored_type(options.type.empty() ? config.run.dtype : options.type);
    files = imported ? std::move(*imported) : split_files(match.tensors.tensors, stored_dtype, options.file_bytes);
    if (run && file_exists(imported_dir / filler_folder_name))
      fillers = std::make_unique<StoredTensors>(imported_dir / filler_folder_name);
    if (!lead) return;
    const std::string_view dtype_name = files.front().tensors.front().type->dtype_name;
    const char* const dtype = dtype_name == "f32" ? "float32" : dtype_name == "bf16" ? "bfloat16" : "float16";
    match.config[match.config.contains("torch_dtype") ? "torch_dtype" : "dtype"] = dtype;
    output.open();
    if (run && imported_config.size() > 0)
      copy_tokenizer_files(imported_dir, dir);
    else
      note = export_tokenizer(checkpoint.path(), state, match.config, dir);
    write_file(dir / config_name, json_text(match.config));
    if (!options.provenance.is_null()) write_file(dir / "provenance.json", json_text(options.provenance));
    if (files.size() > 1 || files.front().name != single_name) write_file(dir / weight_index_name, index_text(files));
  });

  // Only ranks of one host map a file. On a network file system, a host writes whole pages back,
  // with old bytes of other hosts' tensors.
  const std::vector<Index> machines = machine_keys(world, "");
  std::vector<int> writers;
  for (int rank = 0; rank < world.size(); ++rank)
    if (machines[static_cast<std::size_t>(rank)] == machines.front()) writers.push_back(rank);
  const bool writes = std::ranges::find(writers, world.rank()) != writers.end();

  Index total = 0, done = 0;
  std::size_t number = 0;
  for (const OutputFile& file : files)
    for (const OutputTensor& t : file.tensors) total += t.tensor->elements() * t.type->bytes;
  for (const OutputFile& file : files) {
    std::vector<StoredLayout> layout;
    for (const OutputTensor& t : file.tensors) layout.push_back({t.tensor->name, t.type->name, t.tensor->shape});
    const StoredHeader header = stored_header(layout, file.metadata);
    std::unique_ptr<MappedOutput> mapped;
    const auto open = [&](bool create) {
      agree_on_errors(world, [&] {
        if (writes && create == lead)
          mapped = std::make_unique<MappedOutput>(dir / file.name, header.file_bytes, create);
      });
    };
    open(true);
    open(false);
    agree_on_errors(world, [&] {
      if (lead) std::memcpy(mapped->data(), header.bytes.data(), header.bytes.size());
      for (std::size_t i = 0; i < file.tensors.size(); ++i) {
        const OutputTensor& t = file.tensors[i];
        if (writers[number++ % writers.size()] == world.rank())
          write_tensor(t, *values, fillers ? fillers->find(t.tensor->name) : nullptr,
                       mapped->data() + header.begins[i]);
        done += t.tensor->elements() * t.type->bytes;
        progress(done, total);
      }
      if (mapped) mapped->sync();
    });
  }
  agree_on_errors(world, [&] {
    if (lead) output.commit();
  });
  return note;
}

}  // namespace sy
