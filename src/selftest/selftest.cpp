#include "src/selftest/selftest.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>

#include "dist/errors.h"
#include "dist/machine.h"
#include "kernels/cpu/processor.h"
#include "src/doctor/probes.h"
#include "src/numerics/operations.h"
#include "src/selftest/checks.h"
#include "src/text/json.h"

namespace sy::selftest {

namespace fs = std::filesystem;

namespace {

// A rank reports at most this many errors of one check.
constexpr std::size_t most_errors = 12;

// Checks every operation of a device. errors: at most two of each operation.
void check_operations(Device& device, const std::function<void(Index, Index)>& progress, Finding& finding) {
  Index cases = 0, operations = 0;
  const Index total = numerics::operation_count();
  for (const auto& r : numerics::check_operations(device, [&](Index done) { progress(done, total); })) {
    cases += r.cases;
    operations += r.cases > 0;
    for (std::size_t i = 0; i < std::min<std::size_t>(2, r.errors.size()); ++i)
      finding.errors.push_back(fmt::format("{} is wrong for {}", r.operation, r.errors[i]));
  }
  finding.detail = fmt::format("{} operations, {} cases", operations, cases);
}

// A folder that rank 0 makes and removes, and that all ranks see.
class SharedFolder {
 public:
  // Throws CollectiveError if it cannot be made, or if a rank does not see it. Collective.
  SharedFolder(Comm& world, const fs::path& parent) {
    std::string path;
    agree_on_errors(world, [&] {
      if (world.rank() != 0) return;
      path = (parent / "switchyard-selftest-XXXXXX").string();
      if (!::mkdtemp(path.data()))
        fail("cannot make a folder in {} ({}): give another folder with --dir", parent.string(), std::strerror(errno));
      owned_ = path;
    });
    path_ = broadcast_text(world, path, 0);
    agree_on_errors(world, [&] {
      if (!fs::is_directory(path_))
        fail("rank {} on {} does not see {}: give a folder that all machines share with --dir", world.rank(),
             host_name(), path_.string());
    });
  }
  ~SharedFolder() {
    std::error_code ignored;
    if (!owned_.empty()) fs::remove_all(owned_, ignored);
  }
  SharedFolder(const SharedFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_, owned_;
};

fs::path default_folder(Comm& world) {
  const std::vector<std::string> hosts = all_gather_texts(world, host_name());
  std::error_code ignored;
  const fs::path local = fs::temp_directory_path(ignored);
  return std::set(hosts.begin(), hosts.end()).size() > 1 || local.empty() ? fs::current_path() : local;
}

void check_devices(Checks& checks, int local_rank) {
  const auto progress_of = [&](const std::string& name) {
    return [&, name](Index done, Index total) { checks.options.progress(name, done, total); };
  };
  Comm& world = checks.world;
  for (const CpuIsa& isa : cpu_isas()) {
    const std::string name = fmt::format("operations, cpu {}", isa.name);
    checks.run(name, true, [&](Finding& finding) {
      if (isa.runs_here())
        check_operations(*isa.kernels.make(isa.name), progress_of(name), finding);
      else
        finding.skipped = "this processor lacks the instruction set";
    });
  }
  const std::string name = "operations, cuda";
  checks.run(name, true, [&](Finding& finding) {
    try {
      const std::unique_ptr<Device> device = make_cuda(local_rank);
      device->publish_waits_to(block_state(world.shared_context()));
      check_operations(*device, progress_of(name), finding);
    } catch (const NoDevice& e) {
      finding.skipped = e.missing;
    }
  });
}

}  // namespace

bool Checks::run(const std::string& name, bool local, const std::function<void(Finding&)>& check) {
  options.progress(name, 0, 0);
  const auto start = std::chrono::steady_clock::now();
  Finding mine;
  try {
    check(mine);
  } catch (const CollectiveError& e) {
    mine.errors.emplace_back(e.what());
  } catch (const std::exception& e) {
    if (!local) throw;
    mine.errors.emplace_back(e.what());
  }
  if (mine.errors.size() > most_errors) {
    const std::size_t more = mine.errors.size() - most_errors;
    mine.errors.resize(most_errors);
    mine.errors.push_back(fmt::format("and {} more errors", more));
  }
  const Json text{
      {"seconds", seconds_since(start)}, {"detail", mine.detail}, {"skipped", mine.skipped}, {"errors", mine.errors}};
  Check& result = results.emplace_back();
  result.name = name;
  int rank = 0, skipping = 0;
  for (const std::string& other : all_gather_texts(world, text.dump())) {
    const Json found = Json::parse(other);
    result.seconds = std::max(result.seconds, found["seconds"].get<double>());
    const auto detail = found["detail"].get<std::string>(), skipped = found["skipped"].get<std::string>();
    if (result.detail.empty()) result.detail = detail;
    if (result.skipped.empty()) result.skipped = skipped;
    skipping += !skipped.empty();
    for (const auto& error : found["errors"].get<std::vector<std::string>>()) {
      auto& all = result.failures;
      const auto same = std::find_if(all.begin(), all.end(), [&](const Failure& f) { return f.error == error; });
      (same == all.end() ? all.emplace_back(Failure{{}, error}) : *same).ranks.push_back(rank);
    }
    ++rank;
  }
  // A check that some ranks skipped was made by the others.
  if (skipping > 0 && skipping < rank) {
    result.detail += fmt::format("; on {} of {} ranks: {}", rank - skipping, rank, result.skipped);
    result.skipped.clear();
  }
  return result.failures.empty();
}

std::vector<Check> run(Comm& world, const Options& options) {
  Checks checks{world, options};
  std::unique_ptr<SharedFolder> folder;
  const fs::path parent = options.folder.empty() ? default_folder(world) : options.folder;
  if (!checks.run("folder", false, [&](Finding& finding) {
        folder = std::make_unique<SharedFolder>(world, parent);
        finding.detail = parent.string();
      }))
    return checks.results;
  check_devices(checks, local_rank(world));
  check_trainings(checks, "cpu", folder->path());
  const Index with_gpu = -world.max(-Index{cuda_available()});
  if (with_gpu > 0) check_trainings(checks, "cuda", folder->path());
  world.barrier();  // no rank reads the folder any more
  return checks.results;
}

}  // namespace sy::selftest
