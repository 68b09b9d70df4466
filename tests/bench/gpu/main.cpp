// Measures the product on a GPU and reports in Markdown. tests/gpu.sh runs it.
//
// It measures the roofs in the same run, every operation, MoE layers beside PyTorch, and a training
// step.
//
//   bench_gpu [--backend cuda|cpu] [--small] [--report FILE] [--python PROGRAM] [--script FILE]
//             [--load RUN] [--parts PART,...]
//
// PART: operations, attention, layers, step, grouped, graphs; all of them by default. The report is
// rewritten after each part. On several ranks (mpirun, each with a GPU or a share of the cores) it
// measures communication between them instead. It then also measures a layer of the shape of RUN,
// with the routing of RUN's validation text. --backend cpu measures f32. --small shows in seconds
// that everything runs. Exit code 1: some of it failed, and the report says what; 2: there is no
// such device.
#include <boost/program_options.hpp>
#include <ctime>

#include "dist/runtime.h"
#include "kernels/environment.h"
#include "src/system/files.h"
#include "src/text/strings.h"
#include "tests/bench/arguments.h"
#include "tests/bench/gpu/bench.h"

namespace sy::bench {
namespace {

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::localtime(&now));
  return text;
}

using Measure = std::function<void(const Setup&, std::vector<Section>&)>;
struct Group {
  std::string_view name;
  void (*measure)(const Setup&, std::vector<Section>&);
  bool needs_cuda;
};
constexpr Group groups[] = {{"operations", measure_operations, false}, {"attention", measure_attention, true},
                            {"layers", measure_layers, false},         {"step", measure_step, false},
                            {"grouped", measure_grouped, true},        {"graphs", measure_graphs, true}};

// Returns the parts of a comma-separated list, in the order of the table. An empty list means all
// that the device has. Throws InputError.
std::vector<Measure> chosen_measures(const Setup& setup, const std::string& list) {
  const std::vector<std::string> names = split_list(list);
  const auto named = [&](const Group& group) {
    return std::find(names.begin(), names.end(), group.name) != names.end();
  };
  const auto known = [&](const std::string& name) {
    return std::any_of(std::begin(groups), std::end(groups), [&](const Group& p) { return p.name == name; });
  };
  for (const std::string& name : names)
    if (!known(name))
      bad_input("--parts: there is no part '{}': choose from operations, attention, layers, step, grouped and graphs",
                name);
  std::vector<Measure> chosen;
  for (const Group& group : groups) {
    const bool possible = !group.needs_cuda || setup.backend == "cuda";
    if (!possible && named(group)) bad_input("--parts: {} is measured with --backend cuda alone", group.name);
    if (possible && (names.empty() || named(group))) chosen.push_back(group.measure);
  }
  return chosen;
}

int run(Comm& world, int argc, char** argv) {
  namespace po = boost::program_options;
  Setup setup;
  std::string file, names;
  po::options_description options;
  options.add_options()("backend", po::value(&setup.backend)->default_value("cuda"));
  options.add_options()("small", po::bool_switch(&setup.small));
  options.add_options()("report", po::value(&file));
  const char* from_environment = std::getenv("SWITCHYARD_PYTHON");
  options.add_options()("python",
                        po::value(&setup.python)->default_value(from_environment ? from_environment : "python3"));
  options.add_options()("script", po::value(&setup.script)->default_value("tests/bench/pytorch_moe_layer.py"));
  options.add_options()("parts", po::value(&names));
  options.add_options()("load", po::value(&setup.load));
  po::variables_map values;
  bool asked = true;
  agree_on_errors(world, [&] {
    asked = read_arguments(argc, argv, "bench_gpu", "Measures a GPU: operations, layers, a training step, and ranks.",
                           options, values, world.rank() == 0);
  });
  if (!asked) return 0;
  if (!setup.load.empty() && world.size() == 1)
    bad_input("--load: a run's routing is measured between ranks: start several of them with launch/mpirun.sh");
  setup.local_rank = local_rank(world);
  const std::string device = setup.make()->describe();
  const bool tells = world.rank() == 0;
  setup.dtype = setup.backend == "cuda" ? DType::bf16 : DType::f32;
  setup.sample_seconds = setup.small ? 0 : 0.1;
  setup.samples = setup.small ? 3 : 7;

  if (tells && !file.empty()) write_file(file, "");  // fails early if it cannot be written

  // Results are printed and written to the file, even if later parts fail.
  Roofs roofs(setup);
  std::vector<Section> sections;
  std::string text;
  bool complete = true;
  std::vector<Measure> measures = chosen_measures(setup, names);
  if (world.size() > 1) measures = {[&](const Setup& s, std::vector<Section>& to) { measure_ranks(s, world, to); }};
  roofs.measure();
  for (const Measure& group : measures) {
    try {
      group(setup, sections);
      roofs.measure();
    } catch (const std::exception& error) {
      if (world.size() > 1) throw;  // the others wait for this rank
      sections.push_back({"Not measured", error.what(), {}});
      complete = false;
    }
    text = fmt::format(
        "# {}, {}\n\nMedian, and from least to most, of {} samples of at least {} s. Roofs are measured between the "
        "parts; shares are of their medians.\n\n{}",
        device, today(), setup.samples, setup.sample_seconds, report(roofs, sections));
    if (tells && !file.empty()) write_file(file, text);
  }
  if (tells) fmt::print("{}", text);
  return complete ? 0 : 1;
}

}  // namespace
}  // namespace sy::bench

int main(int argc, char** argv) {
  sy::set_library_defaults();
  sy::Runtime runtime(std::make_shared<sy::RankContext>(), &argc, &argv);
  return runtime.run([&] { return sy::bench::run(runtime.world(), argc, argv); });
}
