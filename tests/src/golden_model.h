// Models in the format of Hugging Face. Each value follows from its name and index.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "src/io/safetensors.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "tests/src/golden_values.h"

namespace sy {

struct TestTensor {
  std::string name;
  std::vector<Index> shape;
};

inline std::string tensors_text(const std::vector<TestTensor>& tensors, std::string_view type = "F32") {
  std::vector<StoredLayout> layout;
  for (const TestTensor& t : tensors) layout.push_back({t.name, type, t.shape});
  const StoredHeader header = stored_header(layout, {{"format", "pt"}});
  std::string text = header.bytes;
  text.resize(static_cast<std::size_t>(header.file_bytes));
  const StoredType& stored = *stored_type(type);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    Index n = 1;
    for (const Index d : tensors[t].shape) n *= d;
    const bool around_one = tensors[t].shape.size() == 1 && tensors[t].name.ends_with("weight");
    std::vector<float> values(static_cast<std::size_t>(n));
    if (tensors[t].shape.empty())  // a constant of xIELU
      values[0] = tensors[t].name.ends_with("beta") ? 0.5f : -1e-6f;
    for (Index i = 0; i < n && !tensors[t].shape.empty(); ++i)
      values[static_cast<std::size_t>(i)] = golden_value(tensors[t].name, static_cast<std::uint32_t>(i), around_one);
    stored.store(values.data(), n, reinterpret_cast<std::byte*>(text.data()) + header.begins[t], 1);
  }
  return text;
}

// Writes the folder of a golden case.
inline void write_model(const std::filesystem::path& folder, const Json& golden, std::string_view type = "F32") {
  make_folders(folder);
  write_file(folder / "config.json", json_text(golden["config"]));
  std::vector<TestTensor> tensors;
  for (const Json::Member& m : golden["tensors"].members())
    tensors.push_back({m.name, m.value.get<std::vector<Index>>()});
  write_file(folder / "model.safetensors", tensors_text(tensors, type));
}

}  // namespace sy
