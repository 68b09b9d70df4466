// Forged checkpoints: valid HDF5, and a manifest with the right digests.
//
// A reader must end with one InputError. It must not crash, wait, allocate memory that the files do
// not justify, or read a file outside the checkpoint.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <ctime>
#include <limits>

#include "src/io/hdf5/global_heap.h"
#include "src/io/hdf5/hdf5.h"
#include "src/model/engine.h"
#include "tests/src/checkpoint_fixture.h"
#include "tests/src/raw_hdf5.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

using namespace test;

constexpr const char* weight = "/params/embedding.weight";  // [67, 29]
constexpr hsize_t weight_elements = 67 * 29;

const Raw& plain() {
  static const Raw creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  return creation;
}

class ForgedCheckpoint : public testing::TestWithParam<Forgery> {};

TEST_P(ForgedCheckpoint, IsRejected) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 200);
  ASSERT_EQ(refusal(dir), "");
  // Files beside the checkpoint, which forgeries name.
  write_as(run.path() / "other", {1, 1, 1, 1}, 7);
  fs::copy(run.path() / "other/checkpoints/step-00000007/shard-00000.h5", checkpoints_of(run.path()) / "outside.h5");
  ASSERT_EQ(::mkfifo((checkpoints_of(run.path()) / "pipe").c_str(), 0600), 0);
  std::ofstream(checkpoints_of(run.path()) / "secret") << std::string(100000, 's');
  GetParam().forge(dir);
  seal(dir, 200);
  ASSERT_EQ(verify_checkpoint(dir), std::vector<std::string>{});  // the digests are right
  const std::string error = refusal(dir);
  EXPECT_TRUE(error.starts_with("2: ")) << error;
  EXPECT_NE(error.find(GetParam().says), std::string::npos) << error;
}

void attribute_array(hid_t file, const char* object, const char* name, hid_t type, hsize_t count) {
  const Raw space(H5Screate_simple(1, &count, nullptr), H5Sclose);
  const std::vector<char> zeros(count * H5Tget_size(type), 1);
  raw_attribute(file, object, name, type, space, zeros.data());
}

const Raw& text_type(std::size_t size) {
  static const Raw type(H5Tcopy(H5T_C_S1), H5Tclose);
  done(H5Tset_size(type, size));
  return type;
}

const Raw& external_storage() {
  static const Raw creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  if (H5Pget_external_count(creation) == 0) done(H5Pset_external(creation, "../secret", 0, H5F_UNLIMITED));
  return creation;
}

// The weight as [rows, 29]; only two of its rows have a source.
void virtual_of_two_rows(hid_t file, hsize_t rows) {
  const Raw creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  const hsize_t shape[] = {rows, 29}, two_rows[] = {2, 29}, zero[] = {0, 0}, size = 58;
  const Raw target(H5Screate_simple(2, shape, nullptr), H5Sclose), from(H5Screate_simple(1, &size, nullptr), H5Sclose);
  done(H5Sselect_hyperslab(target, H5S_SELECT_SET, zero, nullptr, two_rows, nullptr));
  done(H5Sselect_hyperslab(from, H5S_SELECT_SET, zero, nullptr, &size, nullptr));
  done(H5Pset_virtual(creation, target, "shard-00000.h5", weight, from));
  raw_dataset(file, weight, {rows, 29}, H5T_IEEE_F32LE, creation);
}

std::function<void(const fs::path&)> number(const char* object, const char* name, long long value) {
  return with(index_name, [=](hid_t file) { raw_number(file, object, name, value); });
}

const Forgery forgeries[] = {
    {"NumberAsArray", "not one whole number",
     with(index_name, [](hid_t f) { attribute_array(f, "/state", "step", H5T_NATIVE_LLONG, 7000); })},
    {"NumberAsReal", "not one whole number",
     with(index_name, [](hid_t f) { attribute_array(f, "/state", "samples", H5T_NATIVE_DOUBLE, 1); })},
    {"NumberAsText", "not one whole number",
     with(index_name, [](hid_t f) { attribute_array(f, "/experts", "layers", text_type(7), 1); })},
    {"NumberOfNothing", "not one whole number",
     with(index_name,
          [](hid_t f) {
            const Raw null(H5Screate(H5S_NULL), H5Sclose);
            raw_attribute(f, "/state", "vocab", H5T_NATIVE_LLONG, null, nullptr);
          })},
    {"TextAsArray", "not one text",
     with(index_name, [](hid_t f) { attribute_array(f, "/state", "config", text_type(8), 5000); })},
    {"TextAsNumber", "not one text",
     with(index_name, [](hid_t f) { attribute_array(f, "/state", "layout", H5T_NATIVE_LLONG, 1); })},
    {"AnotherStep", "step = 201", number("/state", "step", 201)},
    {"NegativeTokens", "tokens = -1", number("/state", "tokens", -1)},
    {"NegativeSamples", "samples = -1", number("/state", "samples", -1)},
    {"EndlessSamples", "samples = 9223372036854775807",
     number("/state", "samples", std::numeric_limits<long long>::max())},
    {"NegativeVocabulary", "vocabulary = -67", number("/state", "vocab", -67)},
    {"NegativeLayers", "MoE layers = -2", number("/experts", "layers", -2)},
    {"NegativeExperts", "experts = -3", number("/experts", "experts", -3)},
    {"ManyLayers", "MoE layers = 4294967296", number("/experts", "layers", 1ll << 32)},
    {"OneLayerMore", "[4, 2, 3]", number("/experts", "layers", 3)},
    {"EndlessWindows", "does not hold its",
     with(index_name, [](hid_t f) { raw_dataset(f, "/experts/steps", {hsize_t{1} << 44}, H5T_STD_I64LE, plain()); })},
    {"EmptyWindows", "does not hold its",
     with(index_name,
          [](hid_t f) {
            raw_dataset(f, "/experts/routed", {4, 2, 3}, H5T_STD_I64LE, plain());
          })},
    {"FiveDimensions", "5 dimensions",
     with(index_name,
          [](hid_t f) {
            raw_dataset(f, "/experts/routed", {4, 2, 3, 1, 1}, H5T_STD_I64LE, plain());
          })},
    {"WindowsBackwards", "a window up to step = 9",
     with(index_name,
          [](hid_t f) {
            const Raw steps(H5Dopen2(f, "/experts/steps", H5P_DEFAULT), H5Dclose);
            const long long backwards[] = {19, 9, 4, 1};
            done(H5Dwrite(steps, H5T_NATIVE_LLONG, H5S_ALL, H5S_ALL, H5P_DEFAULT, backwards));
          })},
    {"NegativeCounts", "dropped assignments = -1",
     with(index_name,
          [](hid_t f) {
            const Raw counts(H5Dopen2(f, "/experts/dropped", H5P_DEFAULT), H5Dclose);
            const std::vector<long long> negative(24, -1);
            done(H5Dwrite(counts, H5T_NATIVE_LLONG, H5S_ALL, H5S_ALL, H5P_DEFAULT, negative.data()));
          })},
    {"BiasThatIsNotFinite", "/router/bias",
     with(index_name,
          [](hid_t f) {
            const Raw bias(H5Dopen2(f, "/router/bias", H5P_DEFAULT), H5Dclose);
            const std::vector<float> infinite(6, -std::numeric_limits<float>::infinity());
            done(H5Dwrite(bias, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, infinite.data()));
          })},

    {"VirtualOfItself", "not in its manifest", with(index_name, [](hid_t f) { raw_virtual(f, weight, ".", weight); })},
    {"VirtualOfTheIndex", "", with(index_name, [](hid_t f) { raw_virtual(f, weight, index_name, weight); })},
    {"VirtualOfAnotherName", "no range of /params/embedding.weight",
     with(index_name, [](hid_t f) { raw_virtual(f, weight, "shard-00000.h5", "/params/layers.0.norm.weight"); })},
    {"VirtualOfAFifo", "not in its manifest",
     with(index_name, [](hid_t f) { raw_virtual(f, weight, "../pipe", weight); })},
    {"VirtualOfAFileOutside", "not in its manifest",
     with(index_name, [](hid_t f) { raw_virtual(f, weight, "../outside.h5", weight); })},
    {"VirtualOfMoreThanThereIs", "has no elements",
     with(index_name, [](hid_t f) { raw_virtual(f, weight, "shard-00000.h5", weight); })},
    {"VirtualOfTwoFilesInACircle", "",
     [](const fs::path& dir) {
       with(index_name, [](hid_t f) { raw_virtual(f, weight, "shard-00000.h5", weight); })(dir);
       with("shard-00000.h5", [](hid_t f) { raw_virtual(f, weight, "shard-00001.h5", weight); })(dir);
       with("shard-00001.h5", [](hid_t f) { raw_virtual(f, weight, "shard-00000.h5", weight); })(dir);
     }},
    {"VirtualWithoutEnd", "no box",
     with(index_name,
          [](hid_t f) {
            const Raw creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
            const hsize_t now[] = {1, 29}, later[] = {H5S_UNLIMITED, 29}, block[] = {1, 29}, source[] = {29},
                          zero[] = {0, 0};
            const hsize_t count[] = {H5S_UNLIMITED, 1};
            const Raw target(H5Screate_simple(2, now, later), H5Sclose),
                from(H5Screate_simple(1, source, nullptr), H5Sclose);
            done(H5Sselect_hyperslab(target, H5S_SELECT_SET, zero, block, count, block));
            done(H5Pset_virtual(creation, target, "../pipe%b", weight, from));
            H5Ldelete(f, weight, H5P_DEFAULT);
            const Raw made(H5Dcreate2(f, weight, H5T_IEEE_F32LE, target, H5P_DEFAULT, creation, H5P_DEFAULT), H5Dclose);
          })},
    {"VirtualWithAHole", "not covered", with(index_name, [](hid_t f) { virtual_of_two_rows(f, 67); })},
    {"VirtualOfMoreThanThereCanBe", "claims more elements",
     with(index_name, [](hid_t f) { virtual_of_two_rows(f, hsize_t{1} << 62); })},
    {"VirtualState", "other files",
     with(index_name,
          [](hid_t f) {
            H5Ldelete(f, "/router/bias", H5P_DEFAULT);
            raw_dataset(f, "/router/bias", {2, 3}, H5T_IEEE_F32LE, plain());
            raw_virtual(f, "/router/bias", "shard-00000.h5", "/router/bias");
          })},
    {"ExternalStorage", "is not contiguous",
     with(index_name,
          [](hid_t f) {
            raw_dataset(f, "/router/bias", {2, 3}, H5T_IEEE_F32LE, external_storage());
          })},
    {"ExternalStorageOfAShard", "is not contiguous",
     [](const fs::path& dir) {
       with(index_name, [](hid_t f) { raw_virtual(f, weight, "shard-00000.h5", weight); })(dir);
       with("shard-00000.h5",
            [](hid_t f) { raw_dataset(f, weight, {weight_elements}, H5T_IEEE_F32LE, external_storage()); })(dir);
     }},

    {"GroupOfItself", "linked twice",
     with(index_name,
          [](hid_t f) { done(H5Lcreate_hard(f, "/params", f, "/params/again", H5P_DEFAULT, H5P_DEFAULT)); })},
    {"RootOfItself", "linked twice",
     with(index_name, [](hid_t f) { done(H5Lcreate_hard(f, "/", f, "/experts/root", H5P_DEFAULT, H5P_DEFAULT)); })},
    {"GroupsInGroups", "too deep",
     with(index_name,
          [](hid_t f) {
            const Raw creation(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
            H5Pset_link_creation_order(creation, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
            std::string path = "/experts";
            for (int level = 0; level < 100; ++level) {
              path += "/g";
              const Raw made(H5Gcreate2(f, path.c_str(), H5P_DEFAULT, creation, H5P_DEFAULT), H5Gclose);
            }
          })},
    {"LinkToAFifo", "a link to elsewhere",
     with(index_name,
          [](hid_t f) {
            H5Ldelete(f, "/router/bias", H5P_DEFAULT);
            done(H5Lcreate_external("../pipe", "/router/bias", f, "/router/bias", H5P_DEFAULT, H5P_DEFAULT));
          })},
    {"LinkToAFileOutside", "a link to elsewhere",
     with(index_name,
          [](hid_t f) {
            done(H5Lcreate_external("../outside.h5", "/params", f, "/outside", H5P_DEFAULT, H5P_DEFAULT));
          })},
    {"SoftLink", "a link to elsewhere",
     with(index_name,
          [](hid_t f) {
            H5Ldelete(f, "/experts/dropped", H5P_DEFAULT);
            done(H5Lcreate_soft("/experts/routed", f, "/experts/dropped", H5P_DEFAULT, H5P_DEFAULT));
          })},
};
INSTANTIATE_TEST_SUITE_P(All, ForgedCheckpoint, testing::ValuesIn(forgeries),
                         [](const auto& test) { return test.param.name; });

// A pipe in place of a file: readers do not wait for its data.
TEST(ForgedCheckpoint, RejectsPipes) {
  for (const char* file : {manifest_name, index_name, "shard-00001.h5"}) {
    const Folder run;
    const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 200);
    fs::remove(dir / file);
    ASSERT_EQ(::mkfifo((dir / file).c_str(), 0600), 0);
    EXPECT_EQ(verify_checkpoint(dir).size(), 1u) << file;
    EXPECT_TRUE(refusal(dir).starts_with("2: " + (dir / file).string() + " is no ")) << refusal(dir);
  }
  const Folder run;
  const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 200);
  Manifest manifest = read_manifest(dir);
  manifest.files.push_back({"../outside.h5", 4, to_hex(sha256("text"))});
  std::ofstream(checkpoints_of(run.path()) / "outside.h5") << "text";
  write_file(dir / manifest_name, to_text(manifest));
  EXPECT_NE(refusal(dir).find("'../outside.h5', which is no file of its folder"), std::string::npos) << refusal(dir);
}

// Names in a manifest must be plain and unique. The time to read them is linear in their number.
TEST(ForgedCheckpoint, RejectsUnsafeNamesInTheManifest) {
  const Folder run;
  const fs::path dir = checkpoints_of(run.path()) / "step-00000200";
  make_folders(dir);
  const auto write = [&](const std::vector<std::string>& names) {
    Manifest manifest{200, {}};
    for (const std::string& name : names) manifest.files.push_back({name, 4, to_hex(sha256("text"))});
    write_file(dir / manifest_name, to_text(manifest));
  };
  for (const char* name : {"", ".", "..", "/etc/passwd", "a/b", "a\nb", "a\x7f"}) {
    write({"index.h5", name});
    EXPECT_BAD_INPUT(read_manifest(dir), "which is no file of its folder");
  }
  write({"index.h5", "shard-00000.h5", "index.h5"});
  EXPECT_BAD_INPUT(read_manifest(dir), "'index.h5' twice");
  std::vector<std::string> many;
  for (int i = 0; i < 100'000; ++i) many.push_back(shard_name(i));
  const std::clock_t begin = std::clock();
  write(many);
  EXPECT_EQ(read_manifest(dir).files.size(), many.size());
  // A quadratic reader takes a minute.
#ifdef SWITCHYARD_SANITIZED
  constexpr double most_seconds = 30;
#else
  constexpr double most_seconds = 10;
#endif
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, most_seconds);
  write_file(dir / manifest_name, std::string((1 << 25) + 1, ' '));
  EXPECT_BAD_INPUT(read_manifest(dir), "is no manifest");
}

TEST(ForgedCheckpoint, RejectsSelectionBiasesOfAnotherModel) {
  const Config config = parse_config(
      "[model]\nlayers = 2\nd_model = 8\nheads = 2\nseq_len = 4\n[moe]\nexperts = 3\nbias_rate = 0.1\n", "test");
  const std::unique_ptr<Comm> world = make_comm_self();
  Engine engine(config, 67, make_cpu(), make_mesh(*world, {}), false);
  engine.set_router_bias(std::vector<float>(6, 1.0f));
  for (std::size_t n : {0, 5, 7})
    EXPECT_BAD_INPUT(engine.set_router_bias(std::vector<float>(n, 1.0f)), "selection biases");
}

// ---- open files ----

struct FileLimit {
  explicit FileLimit(int more) {
    ::getrlimit(RLIMIT_NOFILE, &before);
    struct rlimit limited = before;
    const int lowest = ::dup(STDERR_FILENO);  // lowest free file number
    ::close(lowest);
    limited.rlim_cur = static_cast<rlim_t>(lowest + more);
    ::setrlimit(RLIMIT_NOFILE, &limited);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_NOFILE, &before); }
  struct rlimit before {};
};

TEST(CheckpointFiles, AreOpenedFewAtATime) {
  const Folder a, b;
  const fs::path many = write_as(a.path(), {24, 2, 6, 1}, 200), one = write_as(b.path(), {1, 1, 1, 1}, 200);
  const std::unique_ptr<Device> device = make_cpu();
  ParamStore store(*device, odd_specs(), Layout{}, coord_of(Layout{}, 0), true);
  const FileLimit limit(8);
  load_checkpoint(many, store);
  EXPECT_EQ(wrong_elements(store), 0);
  for (const TensorDifference& d : diff_checkpoints(many, one)) EXPECT_TRUE(d.bitwise_equal) << d.name;
}

#ifndef SWITCHYARD_SANITIZED  // the sanitizer needs a pipe for each check of a type
TEST(CheckpointFiles, ReportErrorsIfTheyCannotBeOpened) {
  const Folder a, b;
  const fs::path first = write_as(a.path(), {4, 2, 2, 1}, 200), second = write_as(b.path(), {4, 1, 1, 1}, 200);
  const std::unique_ptr<Device> device = make_cpu();
  ParamStore store(*device, odd_specs(), Layout{}, coord_of(Layout{}, 0), false);
  const CheckpointTensors tensors(first);
  const auto too_many = [](const std::string& error) {
    return error.starts_with("2: ") && error.find("shard-0000") != std::string::npos &&
           error.find("Too many open files") != std::string::npos;
  };
  std::string statistics_error, diff_error, load_error;
  {
    const FileLimit limit(0);
    statistics_error = error_of([&] { statistics(tensors, weight); });
  }
  {
    const FileLimit limit(2);
    diff_error = error_of([&] { diff_checkpoints(first, second); });
  }
  {
    const FileLimit limit(1);
    load_error = error_of([&] { load_checkpoint(first, store); });
  }
  EXPECT_TRUE(too_many(statistics_error)) << statistics_error;
  EXPECT_TRUE(too_many(diff_error)) << diff_error;
  EXPECT_TRUE(too_many(load_error)) << load_error;
}
#endif

// The library walks over the objects of a global heap by their sizes. A forged size makes this
// endless.
TEST(ForgedGlobalHeap, IsRejectedBeforeTheLibraryOpensIt) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 200), index = dir / index_name;
  const std::string honest = read_file(index);
  const std::size_t heap = honest.find("GCOL");
  ASSERT_NE(heap, std::string::npos);
  struct Case {
    const char* what;
    std::uint16_t object;
    std::uint64_t bytes;
  };
  for (const Case& c : {Case{"free space that takes none", 0, 0}, Case{"less free space than its header", 0, 8},
                        Case{"an object back to itself", 1, ~std::uint64_t{15}}, Case{"an object beyond", 1, 4096},
                        Case{"free space beyond", 0, 1 << 20}}) {
    std::string forged = honest;
    std::memcpy(forged.data() + heap + 16, &c.object, sizeof c.object);
    std::memcpy(forged.data() + heap + 24, &c.bytes, sizeof c.bytes);
    fs::remove(index);
    write_file(index, forged);
    seal(dir, 200);
    for (const std::string& error :
         {joined(verify_checkpoint(dir)), error_of([&] { resolve_checkpoint(dir, nullptr); }),
          error_of([&] { resolve_checkpoint(*make_comm_self(), dir, nullptr); })})
      EXPECT_TRUE(has(error, "index.h5 is damaged: the global heap at byte " + std::to_string(heap)))
          << c.what << ": " << error;
  }
  fs::remove(index);
  write_file(index, honest);
  seal(dir, 200);
  EXPECT_EQ(refusal(resolve_checkpoint(dir, nullptr)), "");
}

// libhdf5 would copy the dimensions that a mapping claims.
TEST(ForgedGlobalHeap, RejectsMappingsThatCannotBe) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 200), index = dir / index_name;
  const std::string honest = read_file(index);
  const std::size_t heap = honest.find("GCOL");
  ASSERT_NE(heap, std::string::npos);
  // The first selection: type, version, 8 bytes, dimensions, blocks, first and last element.
  const std::size_t selection = honest.find(std::string("\2\0\0\0\1\0\0\0\0\0\0\0", 12), heap);
  ASSERT_NE(selection, std::string::npos);
  struct Case {
    std::size_t offset;
    std::uint32_t value;
  };
  for (const Case& c : {Case{0, 1}, Case{4, 9}, Case{16, 33}, Case{16, 0}, Case{20, 1u << 31}, Case{24, 1u << 31}}) {
    std::string forged = honest;
    std::memcpy(forged.data() + selection + c.offset, &c.value, sizeof c.value);
    fs::remove(index);
    write_file(index, forged);
    seal(dir, 200);
    EXPECT_TRUE(has(joined(verify_checkpoint(dir)), "holds no mappings of a dataset")) << c.offset << " " << c.value;
  }
}

// A text of any length is in a global heap, where checkpoints have mappings alone.
TEST(ForgedGlobalHeap, RejectsTextsOfAnyLength) {
  const Folder run;
  const fs::path dir = write_as(run.path(), {2, 1, 2, 1}, 200);
  with(index_name, [](hid_t f) {
    const Raw scalar(H5Screate(H5S_SCALAR), H5Sclose), type(H5Tcopy(H5T_C_S1), H5Tclose);
    done(H5Tset_size(type, H5T_VARIABLE));
    const char* text = "text";
    raw_attribute(f, "/state", "dataset", type, scalar, &text);
  })(dir);
  seal(dir, 200);
  EXPECT_TRUE(has(joined(verify_checkpoint(dir)), "holds no mappings of a dataset"));
  EXPECT_TRUE(refusal(dir).starts_with("2: ")) << refusal(dir);
}

// Heaps within heaps: the walks over all of them take at most as many steps as the file has room
// for objects.
TEST(ForgedGlobalHeap, ChecksNestedHeapsInBoundedTime) {
  const Folder folder;
  std::string bytes;
  constexpr std::uint64_t heaps_within = 20000, object_bytes = 16;
  for (std::uint64_t i = 0; i < heaps_within; ++i) {
    const std::uint64_t size = (heaps_within - i) * 32 + object_bytes;
    bytes += std::string("GCOL\1\0\0\0", 8) + std::string(reinterpret_cast<const char*>(&size), 8);
    // An object whose bytes are the header of the next heap.
    bytes += std::string("\1\0\0\0\0\0\0\0", 8) + std::string(reinterpret_cast<const char*>(&object_bytes), 8);
  }
  bytes += std::string(object_bytes, '\0');
  const fs::path file = folder.write("x.h5", bytes);
  GlobalHeaps heaps;
  for (std::size_t at = 0; at < bytes.size(); at += 777) heaps.scan(std::string_view(bytes).substr(at, 777));
  EXPECT_TRUE(has(heaps.problem(file, nullptr), "does not end where it should"));
}

// The check of the heaps reads lengths of 8 bytes.
TEST(ForgedGlobalHeap, RejectsOtherSizesOfLengths) {
  const Folder folder;
  const fs::path path = folder.path() / "x.h5";
  {
    const Raw creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
    done(H5Pset_sizes(creation, 8, 4));
    const Raw file(H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation, H5P_DEFAULT), H5Fclose);
  }
  EXPECT_TRUE(
      has(error_of([&] { Hdf5File::open(path); }), "2: " + path.string() + " has addresses of 8 and lengths of 4"));
}

}  // namespace
}  // namespace sy
