// Facts of this process and of all ranks.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "dist/device_comm.h"
#include "dist/errors.h"
#include "dist/machine.h"
#include "dist/mpi_info.h"
#include "kernels/cpu/processor.h"
#include "kernels/cuda/devices.h"
#include "kernels/environment.h"
#include "src/build_info.h"
#include "src/io/hdf5/hdf5_library.h"
#include "src/provenance/provenance.h"
#include "src/system/host.h"
#include "src/text/numbers.h"
#include "src/text/strings.h"

namespace sy {
namespace {

// Returns the arguments of this process, as it was started: MPI may change those of main.
std::vector<std::string> process_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  std::vector<std::string> arguments;
  for (std::size_t at = 0; at < text.size(); at += arguments.back().size() + 1)
    arguments.emplace_back(text.c_str() + at);
  return arguments;
}

// Returns the version of a library; null if the build does not have it.
Json version_of(const std::string& loaded, const std::string& built) {
  if (built.empty()) return {};
  return loaded == built ? loaded : fmt::format("{}, built with {}", loaded, built);
}

Json host_json() {
  Json gpus = Json::array();
  for (const cuda::Gpu& gpu : cuda::visible_devices()) gpus.push_back(Json::array({gpu.id, gpu.name}));
  return {{"name", host_name()}, {"processor", processor_name()}, {"gpus", gpus}};
}

CallFacts::Host host_from(const Json& json) {
  CallFacts::Host host{json["name"].get<std::string>(), json["processor"].get<std::string>(), {}};
  for (const Json& gpu : json["gpus"]) host.gpus.emplace_back(gpu[0].get<std::string>(), gpu[1].get<std::string>());
  return host;
}

}  // namespace

Json program_record() {
  const BuildInfo& build = build_info();
  const cuda::Versions cuda = cuda::versions();
  const DeviceCollectives nccl = device_collectives();
  const bool known = !build.commit.empty();
  return {{"program_version", build.version},
          {"commit", known ? Json(build.commit) : Json()},
          {"dirty", known ? Json(build.dirty) : Json()},
          {"build_type", build.build_type},
          {"compiler", build.compiler},
          {"flags", build.flags},
          {"kernel_flags", build.kernel_flags},
          {"instruction_sets", build.instruction_sets},
          {"mpi", mpi_info().library},
          {"cuda", build.cuda_compiler.empty()
                       ? Json()
                       : Json(fmt::format("{}, compiled by {}", cuda.runtime, build.cuda_compiler))},
          {"nccl", version_of(nccl.version, nccl.built_version)},
          {"cublas", version_of(cuda.cublas.loaded, cuda.cublas.built)},
          {"hdf5", hdf5_library().version}};
}

Json collect_provenance(Comm& world) {
  CallFacts facts;
  for (const std::string& text : world.gather(host_json().dump()))  // on rank 0
    facts.ranks.push_back(host_from(Json::parse(text)));
  try {
    facts.instruction_set = cpu_isa().name;
  } catch (const Error&) {  // a command that computes reports it
  }
  facts.job = job_id();
  facts.date = utc_now(false);
  facts.arguments = process_arguments();
  facts.environment = environment_entries();
  Json record = program_record();
  const Json call = call_record(facts), of_rank_0 = Json::parse(broadcast_text(world, call.dump(), 0));
  constexpr std::string_view of_all_ranks[] = {"ranks", "hosts", "processors", "gpus"};
  for (const Json::Member& member : call.members())
    record.append(member.name, std::ranges::find(of_all_ranks, member.name) == std::end(of_all_ranks)
                                   ? member.value
                                   : of_rank_0.at(member.name));
  return record;
}

std::string command_line_text() {
  std::vector<std::string> arguments;
  for (const std::string& argument : process_arguments()) arguments.push_back(shell_quote(hide_secrets(argument)));
  return join(arguments, " ");
}

}  // namespace sy
