#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "src/io/hdf5/array_file.h"
#include "src/io/hdf5/hdf5.h"
#include "tests/src/checkpoint_fixture.h"
#include "tests/src/raw_hdf5.h"

namespace sy {
namespace {

using namespace test;

TEST(ArrayFile, ReplacesWhatAnEndedProcessOfTheSameNumberLeft) {
  const Folder folder;
  const fs::path path = folder.path() / "file.h5";
  const fs::path left = fmt::format("{}.partial{}", path.string(), ::getpid());
  write_file(left, "unfinished");
  const float value = 2.5f;
  write_array_file(path, std::vector<ArrayFileEntry>{{"/a", {}, DType::f32, {}, &value}});
  EXPECT_EQ(Hdf5File::open(path).datasets(), (std::vector<std::string>{"/a"}));
  EXPECT_EQ(files_in(folder.path()), (std::vector<fs::path>{path}));
}

TEST(Hdf5, RoundTripsDatasetsAndAttributes) {
  const Folder folder;
  const fs::path path = folder.path() / "file.h5";
  const std::vector<std::int64_t> ints{1, -2, Index{1} << 62, 4, 5, 6};
  const std::vector<double> doubles{1e-300, -0.0};
  const float scalar = 2.5f;
  const std::string long_text(100000, 'x');
  {
    Hdf5File file = Hdf5File::create(path);
    file.write("/b/deep/ints", {2, 3}, DType::i64, ints.data());
    file.write("/a/doubles", {2}, DType::f64, doubles.data());
    file.write("/a/scalar", {}, DType::f32, &scalar);
    file.write("/a/empty", {0, 3}, DType::i32, nullptr);
    file.set("/", "text", "größe");
    file.set("/", "empty", "");
    file.set("/b", "long", long_text);
    file.set("/b/deep/ints", "negative", std::int64_t{-5});
    file.set("/b", "large", ~std::uint64_t{0});
    file.close();
  }
  const Hdf5File file = Hdf5File::open(path);
  // In the order of their creation, not of the alphabet.
  EXPECT_EQ(file.datasets(), (std::vector<std::string>{"/b/deep/ints", "/a/doubles", "/a/scalar", "/a/empty"}));
  EXPECT_EQ(file.datasets("/b"), (std::vector<std::string>{"/b/deep/ints"}));
  const Hdf5Dataset dataset = file.open_dataset("/b/deep/ints");
  EXPECT_EQ(dataset.shape(), (Shape{2, 3}));
  EXPECT_EQ(dataset.dtype(), DType::i64);
  std::vector<std::int64_t> back(6);
  dataset.read(full_box({2, 3}), back.data());
  EXPECT_EQ(back, ints);
  back.assign(6, 0);
  dataset.read(Box{{0, 1}, {2, 2}}, back.data());
  EXPECT_EQ(back, (std::vector<std::int64_t>{ints[1], ints[2], ints[4], ints[5], 0, 0}));
  back.assign(6, 0);
  auto* out = back.data();
  for (const Box& box : boxes_of_range(dataset.shape(), {2, 5})) {
    dataset.read(box, out);
    out += box.elements();
  }
  EXPECT_EQ(back, (std::vector<std::int64_t>{ints[2], ints[3], ints[4], 0, 0, 0}));
  float scalar_back = 0;
  file.open_dataset("/a/scalar").read(full_box({}), &scalar_back);
  EXPECT_EQ(scalar_back, scalar);
  EXPECT_EQ(file.open_dataset("/a/empty").shape(), (Shape{0, 3}));
  EXPECT_EQ(file.get("/", "text", ""), Attribute("größe"));
  EXPECT_EQ(file.get("/", "empty", ""), Attribute(""));
  EXPECT_EQ(file.get("/b", "long", ""), Attribute(long_text));
  EXPECT_EQ(file.get("/b/deep/ints", "negative", Index{}), Attribute(Index{-5}));
  EXPECT_EQ(file.get("/b", "large", std::uint64_t{}), Attribute(~std::uint64_t{0}));
  EXPECT_TRUE(file.has("/a"));
  EXPECT_FALSE(file.has("/a/none"));
  EXPECT_FALSE(file.has("/none/none"));
}

TEST(Hdf5, VerifyNamesChangedObjects) {
  const Folder folder;
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  // Error of verify() for a closed file that `change` has changed through the library.
  const auto verdict = [&](const std::function<void(hid_t)>& change) {
    const fs::path path = folder.path() / "file.h5";
    fs::remove(path);
    Hdf5File file = Hdf5File::create(path);
    file.write("/g/x", {2, 3}, DType::f32, values.data());
    file.set("/g", "number", std::int64_t{5});
    file.set("/g/x", "text", "meaning");
    file.make_group("/empty");
    file.create_virtual("/g/whole", {6}, {{"shard.h5", 6, {0, 6}, {{0}, {6}}}});
    file.close();
    change(RawFile(path));
    return error_of([&] { file.verify(); });
  };
  EXPECT_EQ(verdict([](hid_t) {}), "");
  const auto write_five = [](hid_t file) {
    const Raw dataset(H5Dopen2(file, "/g/x", H5P_DEFAULT), H5Dclose);
    const float changed[] = {1, 2, 3, 4, 5, 7};
    done(H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, changed));
  };
  EXPECT_TRUE(
      has(verdict(write_five), "1: /g/x of " + (folder.path() / "file.h5").string() + " reads back as other values"));
  EXPECT_TRUE(has(verdict([](hid_t file) { raw_number(file, "/g", "number", 6); }), "1: attribute number of /g of "));
  const auto write_text = [](hid_t file) {
    const Raw type(H5Tcopy(H5T_C_S1), H5Tclose), space(H5Screate(H5S_SCALAR), H5Sclose);
    done(H5Tset_size(type, 7));
    raw_attribute(file, "/g/x", "text", type, space, "Meaning");
  };
  EXPECT_TRUE(has(verdict(write_text), "1: attribute text of /g/x of "));
  EXPECT_TRUE(
      has(verdict([](hid_t file) { raw_virtual(file, "/g/whole", "other.h5", "/g/whole"); }), "1: /g/whole of "));
  for (const char* name : {"/g/x", "/empty"})
    EXPECT_TRUE(
        has(verdict([&](hid_t file) { done(H5Ldelete(file, name, H5P_DEFAULT)); }), "file.h5 cannot be read back: "))
        << name;
}

// The writer thread of a checkpoint is not the first thread that uses HDF5.
TEST(Hdf5, NoThreadPrintsErrorsItself) {
  const Folder folder;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i)
    std::thread([&] {
      const Hdf5File file = Hdf5File::create(folder.path() / fmt::format("{}.h5", i));
      EXPECT_LT(H5Fopen((folder.path() / "none").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), 0);
    }).join();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Hdf5, WritesEqualFilesForEqualContent) {
  const Folder folder;
  std::vector<float> values(1000, 1.5f);
  for (const std::string name : {"a", "b"}) {
    // Files must not hold the time, which HDF5 stores in seconds.
    if (name == "b") ::usleep(1100000);
    Hdf5File file = Hdf5File::create(folder.path() / name);
    file.write("/group/values", {1000}, DType::f32, values.data());
    file.set("/group", "meaning", "none");
    file.close();
  }
  EXPECT_EQ(sha256_file(folder.path() / "a"), sha256_file(folder.path() / "b"));
}

TEST(Hdf5, VirtualDatasetsReadTheirSources) {
  const Folder folder;
  std::vector<float> values(6);
  std::iota(values.begin(), values.end(), 1.0f);
  for (const char* name : {"one.h5", "two.h5"}) {
    Hdf5File file = Hdf5File::create(folder.path() / name);
    file.write("/g/x", {6}, DType::f32, values.data());
    file.close();
    for (float& v : values) v *= 10;
  }
  {
    Hdf5File file = Hdf5File::create(folder.path() / "index.h5");
    // [3, 4]: columns 0 and 1 are elements 0..5 of one.h5, and column 3 is elements 2..4 of two.h5.
    // Column 2 has no source.
    file.create_virtual("/g/x", {3, 4},
                        {{"one.h5", 6, {0, 6}, {{0, 0}, {3, 2}}}, {"two.h5", 6, {2, 5}, {{0, 3}, {3, 1}}}});
    file.create_virtual("/g/nothing", {2}, {});
    file.close();
  }
  // The folder may move, and the reader may run in any folder.
  const fs::path moved = folder.path() / "elsewhere";
  fs::create_directory(moved);
  for (const char* name : {"one.h5", "two.h5", "index.h5"}) fs::rename(folder.path() / name, moved / name);
  std::vector<float> x = raw_values(moved / "index.h5", "/g/x");
  ASSERT_EQ(x.size(), 12u);
  for (int row = 0; row < 3; ++row) {
    EXPECT_EQ(x[row * 4 + 0], static_cast<float>(row * 2 + 1));
    EXPECT_EQ(x[row * 4 + 1], static_cast<float>(row * 2 + 2));
    EXPECT_TRUE(std::isnan(x[row * 4 + 2]));
    EXPECT_EQ(x[row * 4 + 3], static_cast<float>(10 * (row + 3)));
  }
  for (float v : raw_values(moved / "index.h5", "/g/nothing")) EXPECT_TRUE(std::isnan(v));

  // The same mappings, read one by one.
  const Hdf5Dataset dataset = Hdf5File::open(moved / "index.h5").open_dataset("/g/x");
  ASSERT_EQ(dataset.mappings().size(), 2u);
  const SliceMapping& two = dataset.mappings()[1];
  EXPECT_EQ(two.file, "two.h5");
  EXPECT_EQ(two.range.begin, 2);
  EXPECT_EQ(two.range.end, 5);
  EXPECT_EQ(two.box.begin, (Shape{0, 3}));
  EXPECT_EQ(two.box.size, (Shape{3, 1}));
  x.assign(4, -1);  // rows 1 and 2, columns 2 and 3
  const Hdf5File shard = Hdf5File::open(moved / "two.h5");
  EXPECT_EQ(shard.open_dataset("/g/x").read_mapped(two, {{1, 2}, {2, 2}}, x.data()), 2);
  EXPECT_EQ(x, (std::vector<float>{-1, 40, -1, 50}));
  EXPECT_NE(error_of([&] {
              dataset.read(boxes_of_range(dataset.shape(), {0, 1}).front(), x.data());
            }).find("2: /g/x"),
            std::string::npos);

  fs::remove(moved / "two.h5");
  x = raw_values(moved / "index.h5", "/g/x");
  EXPECT_EQ(x[0], 1.0f);
  EXPECT_TRUE(std::isnan(x[3]));
}

TEST(Hdf5, NamesFileAndObjectInErrors) {
  const Folder folder;
  const fs::path path = folder.path() / "file.h5";
  const auto contains = [](const std::string& text, std::initializer_list<const char*> texts) {
    for (const char* expected : texts)
      if (text.find(expected) == std::string::npos)
        return testing::AssertionFailure() << "no " << expected << " in: " << text;
    return testing::AssertionSuccess();
  };
  EXPECT_TRUE(contains(error_of([&] { Hdf5File::open(path); }), {"2: ", "file.h5", "No such file"}));
  EXPECT_TRUE(
      contains(error_of([&] { Hdf5File::create(folder.path() / "no" / "x.h5"); }), {"1: ", "no/x.h5", "No such file"}));
  const float x = 1;
  {
    Hdf5File file = Hdf5File::create(path);
    file.write("/x", {1}, DType::f32, &x);
    EXPECT_TRUE(contains(error_of([&] { file.write("/x", {1}, DType::f32, &x); }), {"1: ", "create /x", "file.h5"}));
    EXPECT_TRUE(contains(error_of([&] { file.set("/none", "a", "b"); }), {"1: ", "attribute a", "/none", "file.h5"}));
    file.set("/x", "text", "no number");
    file.close();
  }
  EXPECT_TRUE(contains(error_of([&] { Hdf5File::create(path); }), {"1: ", "create", "file.h5"}));
  const Hdf5File file = Hdf5File::open(path);
  EXPECT_TRUE(contains(error_of([&] { file.open_dataset("/none/y"); }), {"2: ", "file.h5", "/none/y"}));
  EXPECT_TRUE(contains(error_of([&] { file.get("/x", "none", Index{}); }), {"2: ", "attribute none", "/x", "file.h5"}));
  EXPECT_TRUE(contains(error_of([&] { file.get("/x", "text", Index{}); }), {"2: ", "attribute text"}));
  EXPECT_TRUE(contains(error_of([&] { file.get("/none", "text", ""); }), {"2: ", "/none"}));
  write_file(folder.path() / "text.h5", "this is no HDF5 file");
  EXPECT_TRUE(contains(error_of([&] { Hdf5File::open(folder.path() / "text.h5"); }), {"2: ", "text.h5"}));
}

}  // namespace
}  // namespace sy
