// The one binary. Starts the ranks, finds the command, returns one exit code on all of them.
#include "dist/rank_settings.h"
#include "kernels/threads.h"
#include "src/build_info.h"
#include "src/cli/options.h"
#include "src/text/words.h"
#include "src/train/stop.h"

namespace {

// Ranks that do unlike things would wait for each other. `train` compares its settings itself, whatever their spelling.
void check_same_start(sy::Comm& world, const std::string& name, const std::vector<std::string>& args) {
  const sy::BuildInfo& build = sy::build_info();
  std::vector<sy::RankSetting> settings = {{"the command", name},
                                           {"the program's version", build.version},
                                           {"the program's commit", build.commit},
                                           {"the program's build options", build.options}};
  if (name != "train") settings.push_back({"the arguments", sy::join(args, " ")});
  sy::check_rank_settings(world, settings, "start all ranks with the same program and command line");
}

}  // namespace

int main(int argc, char** argv) {
  sy::apply_thread_settings(argv);
  if (argc > 1 && std::string_view(argv[1]) == "train") sy::listen_for_stop();
  sy::Runtime runtime(&argc, &argv);
  return runtime.run([&] {
    sy::Comm& world = runtime.world();
    std::vector<std::string> args(argv + 1, argv + argc);
    std::string name = args.empty() ? "help" : args.front();
    if (!args.empty()) args.erase(args.begin());
    if (name == "--help" || name == "-h") name = "help";
    if (name == "--version") name = "version";
    check_same_start(world, name, args);
    std::vector<std::string> known;
    for (const sy::Command& c : sy::commands()) {
      if (name == c.name) {
        sy::CommandLine line{world, args, nullptr};
        if (c.parallel) {
          sy::agree_on_isa(world);
          return c.run(line);
        }
        // One rank does it; started on several, the others wait for its result.
        int code = 0;
        sy::agree(world, [&] {
          if (world.rank() != 0) return;
          const auto self = sy::make_comm_self();
          sy::CommandLine alone{*self, args, nullptr};
          code = c.run(alone);
        });
        return static_cast<int>(world.max(code));
      }
      known.emplace_back(c.name);
    }
    sy::agree(world, [&] {
      const std::string near = sy::nearest(name, known);
      sy::bad_input("unknown command '{}': {}", name,
                    near.empty() ? "`switchyard help` lists them" : "did you mean " + near + "?");
    });
    return 2;
  });
}
