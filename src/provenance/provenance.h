// Provenance: a record of the program, the machines and the call that made a file.
//
// A record is a JSON object. docs/reference/files.md lists its members. Commands write it into
// their files, so that a reader can tell why two results differ.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dist/comm.h"
#include "src/text/json.h"

namespace sy {

// Name of the file in a run folder with a record of each start of the run, one a line. A record
// begins with its `first_step`.
constexpr const char* provenance_name = "provenance.jsonl";

using Entries = std::vector<std::pair<std::string, std::string>>;  // names and values

// Returns the members of a record about this program: version, commit, compiler and libraries. A
// library that is not part of this build is null. Without a commit, `commit` and `dirty` are null.
Json program_record();
// Returns such members as lines for a terminal.
std::string program_text(const Json& program);

// Facts about a call that the operating system knows.
struct CallFacts {
  struct Host {
    std::string name, processor;
    Entries gpus;  // id and name of each GPU that the rank sees
  };
  std::vector<Host> ranks;             // [rank] host of each rank
  std::string instruction_set;         // of the CPU kernels; empty if none runs here
  std::string job;                     // of a batch system; empty if there is none
  std::string date;                    // start of the call, UTC
  std::vector<std::string> arguments;  // the command line, with the program
  Entries environment;                 // variables, recorded or not
};
// Returns the members of a record about a call. Hosts, processors and GPUs are distinct. Pure
// function. Values of secrets are replaced (hide_secrets).
Json call_record(const CallFacts& facts);

// Returns the record of this program and this call. Collective. Ranks may differ in date, command
// and environment.
Json collect_provenance(Comm& world);

// Returns the record of a text, such as TrainState::provenance. Null if it is no JSON object.
Json parse_record(const std::string& text);

// Returns the record with the SHA-256 of a configuration (INI) and the digest of a data set. An
// empty text is recorded as null.
Json with_inputs(Json record, const std::string& config, const std::string& data_digest);

// Returns the members of a record that files for others contain: version, commit, hardware and
// digest of the configuration. Date, hosts, command and environment are left out. Null if the
// record is null.
Json public_record(const Json& record);

// How much of a record a file for others contains: the value of --provenance.
enum class ProvenanceDetail { brief, full };
// Returns the record or its public members.
Json record_for(const Json& record, ProvenanceDetail detail);

// Returns the public members on one line: "switchyard 0.2.0, commit 0123456789ab, 2 x EPYC 7B13,
// configuration 89abcdef0123". Empty if the record is null.
std::string provenance_line(const Json& record);

// Returns the CSV with the columns version, commit, hardware and config_sha256 after the others. If
// the record has further members, the column `provenance` has its JSON in the first row. If the
// record is null, returns the CSV as it is.
std::string csv_with_provenance(const std::string& csv, const Json& record);

// Returns each value of a record with its name. Members of objects have names such as
// "environment.OMP_NUM_THREADS". The record may come from any file.
Entries provenance_entries(const Json& record);
struct ProvenanceDifference {
  std::string name, first, second;  // a value that is absent is empty
};
// Returns the entries that differ, except the date.
std::vector<ProvenanceDifference> provenance_differences(const Json& first, const Json& second);

// Returns whether a record has a variable: it begins with SWITCHYARD_, OMP_, NCCL_, UCX_, FI_,
// OMPI_MCA_ or MPICH_, and no launcher sets it anew for each job.
bool is_recorded(std::string_view variable);
// Returns the text without the value of any NAME=VALUE whose NAME is a secret's, up to its end.
std::string hide_secrets(const std::string& text);
// Returns whether a variable of this name holds a secret: it contains TOKEN, KEY, SECRET or PASS.
bool is_secret_name(std::string_view name);

// Returns the command line of this process, quoted for a shell, without secrets.
std::string command_line_text();

}  // namespace sy
