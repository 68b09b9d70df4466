// Description of a machine: the speeds of computing, of memory and of links.
// Machines are INI files in configs/machines. People write them from data sheets, or `switchyard
// doctor --machine FILE` writes them from measurements.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/dtype.h"
#include "src/text/json.h"

namespace sy {

// Share of a peak by size, written "64:0.3, 1024:0.8". Between two sizes it is linear in the
// logarithm of the size; beyond the ends it is constant.
struct Curve {
  std::vector<std::pair<double, double>> points;  // in rising order of size
  double at(double size) const;
};

struct Machine {
  std::string name, backend = "cpu";
  // If true, speeds and memory are a node's, and its ranks (cores) share them equally. Otherwise
  // they are each rank's (GPUs).
  bool shared = false;
  double ranks_per_node = 0;  // 0 means that all ranks are on one node

  double memory = 0;  // bytes that training may use
  // FLOP/s; 0 if the machine does not compute in this type.
  double peak_f32 = 0, peak_bf16 = 0;
  double memory_bandwidth = 0;  // bytes/s
  double overhead = 0;          // seconds between operations, independent of their size
  // Shares of the peak: of GEMMs by the smallest of rows, columns and depth, of attention by the
  // head width.
  Curve products, grouped_products, attention_forward, attention_backward;
  // bytes/s of operations that are slower than memory.
  std::map<std::string, double, std::less<>> operations;
  // Links to ranks on the node and on other nodes. Latency: seconds of a message without its bytes.
  // Bandwidth: bytes/s.
  double node_latency = 0, node_bandwidth = 0, latency = 0, bandwidth = 0;
  // Seconds between messages of a rank that do not wait for one another (o of LogP: Culler et al.,
  // 1993).
  double message_overhead = 1e-6;

  // Returns the number of ranks that share one node's speeds and memory; 1 if each rank has its
  // own.
  double ranks_sharing(int ranks) const {
    if (!shared) return 1;
    return ranks_per_node > 0 ? std::min<double>(ranks, ranks_per_node) : ranks;
  }
  double memory_of_rank(int ranks) const { return memory / ranks_sharing(ranks); }
  // Returns the number of ranks per node for Layout::node; 1 if there is only one node.
  int node() const { return std::max(1, static_cast<int>(ranks_per_node)); }
  double peak(DType dtype) const { return dtype == DType::f32 ? peak_f32 : peak_bf16; }
};

// Throws InputError that names every wrong line and key.
Machine parse_machine(const std::string& ini_text, const std::string& origin);
std::string to_ini(const Machine& machine, std::string_view comment);
// Returns all keys by section, as in a file. A curve is a list of [size, share]. An omitted number
// is 0.
Json machine_json(const Machine& machine);

// A machine file and its content, before it is parsed.
struct MachineFile {
  std::string path, text;  // empty if no machine is named
};
// Reads a machine file, or the file of a name in a folder configs/machines. These folders are in
// the working directory, above the configuration file, and where the program was built or
// installed. Throws InputError that lists the names found. source: what gave the name, for the
// error.
MachineFile read_machine_file(const std::string& file_or_name, const std::filesystem::path& config_file,
                              std::string_view source = "--machine");
// Reads and parses such a file. Throws InputError.
Machine read_machine(const std::string& file_or_name, const std::filesystem::path& config_file,
                     std::string_view source = "--machine");
// Returns the names of machine files in the same folders, without those above a configuration file.
std::vector<std::string> machine_names();

}  // namespace sy
