// Safetensors files: written files are read back, and a false file gives one clear error.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/io/safetensors.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

// A file with this header and `data_bytes` bytes of data.
std::string with_header(const std::string& header, std::size_t data_bytes, std::uint64_t length) {
  std::string text(reinterpret_cast<const char*>(&length), sizeof length);
  return text + header + std::string(data_bytes, '\1');
}
std::string with_header(const std::string& header, std::size_t data_bytes) {
  return with_header(header, data_bytes, header.size());
}

std::string error_of_file(const std::string& content) {
  const TempFolder temp;
  temp.write("model.safetensors", content);
  try {
    const StoredTensors tensors(temp.path());
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

TEST(Safetensors, RoundTrips) {
  const TempFolder temp;
  const StoredHeader header =
      stored_header({{"a", "F32", {2, 3}}, {"none", "BF16", {0, 4}}, {"scalar", "F16", {}}}, {{"k", "v"}});
  EXPECT_EQ(header.bytes.size() % 8, 0u);
  {
    MappedOutput out(temp.path() / "model.safetensors", header.file_bytes, true);
    std::memcpy(out.data(), header.bytes.data(), header.bytes.size());
    const float values[] = {1, 2, 3, 4, 5, 6, 0.5f};
    stored_type("f32")->store(values, 6, out.data() + header.begins[0], 1);
    stored_type("f16")->store(values + 6, 1, out.data() + header.begins[2], 1);
    out.sync();
  }
  const StoredTensors tensors(temp.path());
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors.files().at(0).metadata.at("k"), "v");
  EXPECT_EQ(tensors.files().at(0).tensors, (std::vector<std::string>{"a", "none", "scalar"}));
  float read[3];
  stored_type("F32")->load(tensors.find("a")->data + 4, 2, 3, read);
  EXPECT_EQ(read[0], 2);
  EXPECT_EQ(read[2], 6);
  stored_type("F16")->load(tensors.find("scalar")->data, 1, 1, read);
  EXPECT_EQ(read[0], 0.5f);
  EXPECT_EQ(tensors.find("none")->bytes, 0);
  EXPECT_EQ(tensors.find("b"), nullptr);
}

// All 16-bit numbers are read back exactly. Numbers between two of them round to the nearest; ties
// round to even.
TEST(Safetensors, ConvertsHalfPrecisionExactly) {
  const StoredType& half = *stored_type("f16");
  float before = -std::numeric_limits<float>::infinity();
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto stored = static_cast<std::uint16_t>(bits);
    float value = 0;
    half.load(reinterpret_cast<const std::byte*>(&stored), 1, 1, &value);
    std::uint16_t again = 0;
    half.store(&value, 1, reinterpret_cast<std::byte*>(&again), 1);
    if (std::isnan(value)) {
      EXPECT_EQ(again & 0x7c00, 0x7c00);
      EXPECT_NE(again & 0x3ff, 0);
      continue;
    }
    ASSERT_EQ(again, stored);
    if (bits == 0) before = value;
    if (bits > 0 && bits <= 0x7bff) {  // positive numbers ascend
      ASSERT_GT(value, before);
      const float middle = before + (value - before) / 2;
      for (const auto& [x, want] : {std::pair{middle, bits % 2 == 0 ? bits : bits - 1},
                                    {std::nextafter(middle, 0.0f), bits - 1},
                                    {std::nextafter(middle, 1e9f), bits}}) {
        half.store(&x, 1, reinterpret_cast<std::byte*>(&again), 1);
        ASSERT_EQ(again, want) << x;
      }
      before = value;
    }
  }
  for (const auto& [x, want] : {std::pair{65519.0f, 0x7bff}, {65520.0f, 0x7c00}, {1e30f, 0x7c00}, {-1e30f, 0xfc00}}) {
    std::uint16_t stored = 0;
    half.store(&x, 1, reinterpret_cast<std::byte*>(&stored), 1);
    EXPECT_EQ(stored, want) << x;
  }
}

TEST(Safetensors, RejectsInconsistentFiles) {
  const auto entry = [](const std::string& shape, const std::string& offsets, const std::string& type = "F32") {
    return R"({"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  struct Row {
    std::string content, error;
  };
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  const Row rows[] = {
      {"", "it has 0 bytes"},
      {"1234567", "it has 7 bytes"},
      {with_header("{}", 0, 3), "its header 3"},
      {with_header("{}", 0, ~std::uint64_t{0}), "its header 18446744073709551615"},
      {with_header("{}", 0, std::uint64_t{1} << 63), "its header"},
      {with_header("{}", 4), "its tensors end at byte 0 of 4"},
      {with_header("[1]", 0), "its header"},
      {with_header("{\"a\": \"\xff\xfe\"}", 0), "its header"},
      {with_header(deep, 0), "its header"},
      {with_header(R"({"a":)" + entry(std::string(100000, '['), "[0,4]") + "}", 4), "its header"},
      {with_header("{\"\xc3\x28\":" + entry("[1]", "[0,4]") + "}", 4), "its header"},
      {with_header(R"({"a":)" + entry("[1]", "[0,4]"), 4), "its header"},
      {with_header(R"({"a":)" + entry("[1]", "[0,8]") + "}", 8), "has 8 bytes"},
      {with_header(R"({"a":)" + entry("[1]", "[0,4]") + "}", 3), "of 3"},
      {with_header(R"({"a":)" + entry("[1]", "[4,0]") + "}", 4), "lies at bytes 4 to 0"},
      {with_header(R"({"a":)" + entry("[1]", "[-4,0]") + "}", 4), "lies at bytes -4"},
      {with_header(R"({"a":)" + entry("[-1]", "[0,4]") + "}", 4), "has shape [-1]"},
      {with_header(R"({"a":)" + entry("[4294967296,4294967296,4]", "[0,4]") + "}", 4), "has shape"},
      {with_header(R"({"a":)" + entry("[9223372036854775807]", "[0,4]") + "}", 4), "has shape"},
      {with_header(R"({"a":)" + entry("[18446744073709551615]", "[0,4]") + "}", 4), "its header"},
      {with_header(R"({"a":)" + entry("[9223372036854775807,0]", "[0,0]") + "}", 0), "has shape"},
      {with_header(R"({"a":)" + entry("[1]", "[0,9223372036854775807]") + "}", 4),
       "lies at bytes 0 to 9223372036854775807"},
      {with_header(R"({"a":)" + entry("[1]", "[9223372036854775804,9223372036854775807]") + "}", 4),
       "lies at bytes 9223372036854775804"},
      {with_header(R"({"a":)" + entry("[1]", "[18446744073709551612,18446744073709551615]") + "}", 4), "its header"},
      {with_header(R"({"a":)" + entry("[1]", "[0,1e300]") + "}", 4), "its header"},
      {with_header(R"({"a":)" + entry("[1]", "[0,4]", "F7") + "}", 4), "of type F7"},
      {with_header(R"({"a":)" + entry("[1]", "[0]") + "}", 4), "1 data_offsets"},
      {with_header(R"({"a":{"dtype":"F32","shape":[1]}})", 4), "its header"},
      {with_header(R"({"a":)" + entry("[1]", "[0,4]") + R"(,"b":)" + entry("[1]", "[0,4]") + "}", 4),
       "what is before it"},
      {with_header(R"({"a":)" + entry("[1]", "[0,4]") + R"(,"b":)" + entry("[1]", "[8,12]") + "}", 12),
       "begins at byte 8"},
      {with_header(R"({"a":)" + entry("[1]", "[0,4]") + R"(,"a":)" + entry("[1]", "[4,8]") + "}", 8), "there twice"},
      {with_header(R"({"__metadata__":{"format":1},"a":)" + entry("[1]", "[0,4]") + "}", 4), "its header"},
  };
  for (const Row& row : rows) {
    const std::string error = error_of_file(row.content);
    EXPECT_NE(error.find(row.error), std::string::npos) << "'" << row.error << "' is not in: " << error;
  }
}

// An index of several files must name existing files, and each tensor must be in one of them.
TEST(Safetensors, RejectsInconsistentIndices) {
  const std::string one = with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
  const auto error_of_index = [&](const std::string& index) {
    const TempFolder temp;
    temp.write("1.safetensors", one);
    temp.write("2.safetensors", one);
    temp.write("model.safetensors.index.json", index);
    try {
      const StoredTensors tensors(temp.path());
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto expect_error = [&](const std::string& index, const std::string& text) {
    const std::string error = error_of_index(index);
    EXPECT_NE(error.find(text), std::string::npos) << "'" << text << "' is not in: " << error;
  };
  EXPECT_EQ(error_of_index(R"({"weight_map":{"a":"1.safetensors"}})"), "");
  expect_error(R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})", "both have a");
  expect_error(R"({"weight_map":{"a":"3.safetensors"}})", "cannot read");
  expect_error(R"({"weight_map":{"a":".."}})", "no file of its folder");
  expect_error(R"({"weight_map":{"a":"/etc/passwd"}})", "no file of its folder");
  expect_error(R"({"weight_map":{"a":"1.safetensors\u0000"}})", "no file of its folder");
  expect_error(R"({"weight_map":{"a":"1\u000a.safetensors"}})", "no file of its folder");
  expect_error(R"({"weight_map":{"a":7}})", "cannot be read");
  expect_error(R"({"weight_map":[]})", "cannot be read");
  expect_error("{}", "cannot be read");
}

// Any byte of a header may be wrong: it is then read, or it causes an InputError.
TEST(Safetensors, ReadsOrRejectsChangedHeaders) {
  const StoredHeader header = stored_header({{"a", "F32", {2, 3}}, {"b", "BF16", {4}}}, {{"format", "pt"}});
  std::string whole =
      header.bytes + std::string(static_cast<std::size_t>(header.file_bytes) - header.bytes.size(), '\0');
  int refused = 0;
  for (std::size_t at = 0; at < header.bytes.size(); ++at)
    for (const char c : {'\0', '9', '"', '}', '\xff'}) {
      std::string changed = whole;
      changed[at] = c;
      refused += !error_of_file(changed).empty();
    }
  EXPECT_GT(refused, 100);
}

// The path of a new file is a link.
TEST(Safetensors, RefusesToWriteThroughLinks) {
  const TempFolder temp;
  temp.write("mine", "mine mine");
  std::filesystem::create_symlink(temp.path() / "mine", temp.path() / "link");
  for (const bool create : {true, false}) EXPECT_THROW(MappedOutput(temp.path() / "link", 8, create), Failure);
  EXPECT_THROW(MappedOutput(temp.path() / "mine", 8, true), Failure);
  EXPECT_EQ(read_file(temp.path() / "mine"), "mine mine");
}

TEST(Safetensors, FailsOnAFullDisk) {
  const TempFolder temp;
  EXPECT_THROW(MappedOutput(temp.path() / "large", Index{1} << 62, true), Failure);
  EXPECT_THROW(MappedOutput(temp.path() / "no" / "folder", 8, true), Failure);
}

}  // namespace
}  // namespace sy
