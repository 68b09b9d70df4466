// Opening of the data set of a training, and the numbers of its tokenizer that training needs.
#include "dist/errors.h"
#include "dist/file_readers.h"
#include "src/data/dataset.h"
#include "src/data/masking.h"
#include "src/data/sequence_pairs.h"
#include "src/data/tokenizer.h"
#include "src/system/files.h"

namespace sy {
namespace {

std::vector<Index> text_bytes_of(const Tokenizer& tokenizer) {
  std::vector<Index> bytes;
  for (std::int32_t id = 0; id < tokenizer.vocab(); ++id) bytes.push_back(tokenizer.text_bytes(id));
  return bytes;
}

}  // namespace

void check_data_path(const Config& config) {
  const std::string& path = config.data.path;
  if (path.empty()) bad_input("data.path is not set: give the folder that `switchyard prepare` wrote");
  if (!file_exists(std::filesystem::path(path) / "dataset.ini"))
    bad_input(
        "data.path = {} is no data set (it has no dataset.ini): set it to a folder that `switchyard prepare` wrote "
        "(a relative path begins in the working directory, or beside the configuration that sets it)",
        path);
}

Dataset open_training_data(const Config& config) {
  check_data_path(config);
  return Dataset(config.data.path);
}

Dataset open_for_all_ranks(Comm& world, const std::filesystem::path& dir, const std::function<Dataset()>& open) {
  std::optional<Dataset> dataset;
  const std::string shared = read_for_all_ranks(world, dir, [&] {
    dataset = open();
    return dataset->shared_text();
  });
  // The sizes of files that differ would be an error, too, but one that names no rank.
  check_same_data(world, dir, shared);
  agree_on_errors(world, [&] {
    if (!dataset) dataset = Dataset(dir, shared);
  });
  return *dataset;
}

Dataset open_training_data(Comm& world, const Config& config) {
  return open_for_all_ranks(world, config.data.path, [&] {
    Dataset dataset = open_training_data(config);
    const bool validates = config.train.validate_every > 0;
    find_tokenizer_numbers(with_special_tokens(config, dataset), dataset,
                           validates ? std::optional(config.train.validate_windows) : std::nullopt);
    return dataset;
  });
}

void find_tokenizer_numbers(const Config& config, const Dataset& dataset, std::optional<Index> max_windows) {
  training_masking(config, dataset);
  training_pairs(config, dataset);
  if (max_windows) target_text_bytes(config, dataset, *max_windows);
}

const std::vector<Index>* target_text_bytes(const Config& config, const Dataset& dataset, Index max_windows) {
  const bool leaves_out = max_windows > 0 || config.data.ignores_document_begins() || dataset.has_loss_mask() ||
                          config.train.objective == Objective::masked || config.has_visible_prefix();
  // The text of an encoder-decoder's targets is not that of the data set.
  const bool known = config.model.kind != ModelKind::encoder_decoder && dataset.tokenizer() != "none";
  return leaves_out && known ? &dataset.tokenizer_numbers("text_bytes", text_bytes_of) : nullptr;
}

}  // namespace sy
