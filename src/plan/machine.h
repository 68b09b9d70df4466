// A machine as numbers: how fast a rank computes, moves memory and reaches other ranks. INI files in configs/machines, which
// people write from data sheets, or `switchyard doctor --machine FILE` from measurements.
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

// A share of a peak by size, written "64:0.3, 1024:0.8": between two sizes it is linear in the logarithm of the size, and beyond the
// ends as at the ends.
struct Curve {
  std::vector<std::pair<double, double>> points;  // by rising size
  double at(double size) const;
};

struct Machine {
  std::string name, backend = "cpu";
  // Whether speeds and memory are a node's, of which each of its ranks has an equal part (cores), or each rank's (GPUs).
  bool shared = false;
  double ranks_per_node = 0;  // 0: all ranks are on one node

  double memory = 0;                   // bytes that training may take
  double peak_f32 = 0, peak_bf16 = 0;  // FLOP/s; 0: it does not compute in this type
  double memory_bandwidth = 0;         // bytes/s
  double overhead = 0;                 // seconds from operation to operation, whatever their size
  // Shares of the peak: of products by the least of rows, columns and depth; of attention by the width of a head.
  Curve products, grouped_products, attention_forward, attention_backward;
  std::map<std::string, double, std::less<>> operations;  // bytes/s of those that are slower than memory
  // Seconds that a message to one other rank takes beside its bytes, and bytes/s, to ranks of the node and beyond.
  double node_latency = 0, node_bandwidth = 0, latency = 0, bandwidth = 0;
  // Seconds from one message to the next of a rank that waits for none of them (o of LogP: Culler
  // et al., 1993).
  double message_overhead = 1e-6;

  // The number of ranks that share one node's speeds and memory; 1 if each rank has its own.
  double ranks_sharing(int ranks) const {
    if (!shared) return 1;
    return ranks_per_node > 0 ? std::min<double>(ranks, ranks_per_node) : ranks;
  }
  double memory_of_rank(int ranks) const { return memory / ranks_sharing(ranks); }
  // Ranks of a node that is one of several, for Layout::node; 1: there are no several.
  int node() const { return std::max(1, static_cast<int>(ranks_per_node)); }
  double peak(DType dtype) const { return dtype == DType::f32 ? peak_f32 : peak_bf16; }
};

// Throws InputError that names every wrong line and key.
Machine parse_machine(const std::string& ini_text, const std::string& origin);
std::string to_ini(const Machine& machine, std::string_view comment);
// All keys by their sections, as in a file; a curve is a list of [size, share]. A number that the
// file leaves out is 0.
Json machine_json(const Machine& machine);

// A file, or the name of one in a folder configs/machines: of the working directory, of those above the configuration file, or
// where the program was built or installed. Throws InputError that lists those that are there.
Machine read_machine(const std::string& file_or_name, const std::filesystem::path& config_file);
// Returns the names of machine files in the same folders, without those above a configuration file.
std::vector<std::string> machine_names();

}  // namespace sy
