// Records of the program and its call: their values, secrets, and forms for files.
#include "src/provenance/provenance.h"

#include <gtest/gtest.h>

#include "kernels/environment.h"
#include "src/build_info.h"
#include "src/experiments/trainings.h"
#include "src/io/checkpoint.h"
#include "src/system/digest.h"
#include "src/system/files.h"
#include "src/system/host.h"
#include "tests/src/checkpoint_fixture.h"
#include "tests/src/temp_folder.h"

namespace sy {
namespace {

CallFacts example_facts() {
  const CallFacts::Host a{"node1", "EPYC", {{"0", "H100"}, {"1", "H100"}}};
  CallFacts facts;
  facts.ranks = {a, a, {"node2", "EPYC", {{"0", "H100"}}}, {"node3", "Xeon", {}}};
  facts.instruction_set = "avx2";
  facts.job = "77";
  facts.date = "2026-11-25T08:00:00Z";
  facts.arguments = {"switchyard", "train", "my config.ini"};
  facts.environment = {{"OMP_NUM_THREADS", "4"}, {"HOME", "/home/me"}, {"NCCL_DEBUG", "INFO"}};
  return facts;
}

Json example_record() {
  Json record{{"program_version", "1.2.3"}, {"commit", std::string(40, 'c')}, {"dirty", true}, {"mpi", "MPI 9"}};
  const Json call = call_record(example_facts());
  for (const Json::Member& m : call.members()) record.append(m.name, m.value);
  return with_inputs(std::move(record), "[model]\n", "digest-of-data");
}

TEST(Provenance, RecordsACall) {
  const Json record = call_record(example_facts());
  EXPECT_EQ(
      record.dump(),
      R"({"ranks":4,"hosts":["node1","node2","node3"],"processors":["2 x EPYC","1 x Xeon"],"gpus":["3 x H100"],)"
      R"("instruction_set":"avx2","job":"77","date":"2026-11-25T08:00:00Z",)"
      R"("command":"switchyard train 'my config.ini'","environment":{"OMP_NUM_THREADS":"4","NCCL_DEBUG":"INFO"}})");
  CallFacts alone;
  EXPECT_TRUE(call_record(alone)["job"].is_null());
}

TEST(Provenance, RecordsTheVariablesThatMatter) {
  for (const char* name :
       {"SWITCHYARD_ISA", "OMP_NUM_THREADS", "NCCL_DEBUG", "UCX_TLS", "FI_PROVIDER", "MPICH_RANK", "OMPI_MCA_btl"})
    EXPECT_TRUE(is_recorded(name)) << name;
  for (const char* name : {"HOME", "PATH", "MY_OMP_X", "OMPI_MCA_orte_hnp_uri", "OMPI_COMM_WORLD_RANK", "OMPI_ARGV",
                           "SWITCHYARD_CONSOLE_PROCESS"})
    EXPECT_FALSE(is_recorded(name)) << name;
}

// No form of a record has the secret: neither by the name of its variable, nor in an assignment
// within another value or argument.
TEST(Provenance, HidesSecrets) {
  CallFacts facts = example_facts();
  const std::string secret = "hunter2";
  for (const char* name : {"SWITCHYARD_TOKEN", "NCCL_API_KEY", "UCX_client_secret", "FI_PASSWORD", "OMP_Key_Of_Mine"})
    facts.environment.emplace_back(name, secret);
  facts.environment.emplace_back("OMPI_MCA_mca_base_env_list", "A=1;HF_TOKEN=" + secret + ";B=2");
  facts.arguments = {"switchyard",        "--launcher",        "srun --export=ALL,WANDB_API_KEY=" + secret + " x",
                     "DB_PASS=" + secret, "--tokenizer=bytes", "--data.path=keys"};
  const Json record = call_record(facts);
  EXPECT_EQ(record.dump().find(secret), std::string::npos) << record;
  const Json& environment = record["environment"];
  EXPECT_EQ(environment["SWITCHYARD_TOKEN"], "(hidden)");
  EXPECT_EQ(environment["OMPI_MCA_mca_base_env_list"], "A=1;HF_TOKEN=(hidden)");
  EXPECT_EQ(environment["OMP_NUM_THREADS"], "4");
  const std::string command = record["command"].get<std::string>();
  EXPECT_NE(command.find("--tokenizer=bytes --data.path=keys"), std::string::npos) << command;
  EXPECT_FALSE(is_secret_name("OMP_NUM_THREADS"));
  EXPECT_EQ(hide_secrets("A=B=C TOKENS"), "A=B=C TOKENS");
}

TEST(Provenance, CollectsThisProcess) {
  const auto world = make_comm_self();
  const Json record = collect_provenance(*world);
  EXPECT_EQ(record["program_version"], build_info().version);
  EXPECT_EQ(record["compiler"], build_info().compiler);
  EXPECT_EQ(record["hosts"].size(), 1u);
  EXPECT_EQ(record["processors"][0], "1 x " + processor_name());
  EXPECT_NE(record["command"].get<std::string>().find(program_path().filename().string()), std::string::npos);
  EXPECT_EQ(record["date"].get<std::string>().size(), std::string("2026-11-25T08:00:00Z").size());
  EXPECT_FALSE(record["mpi"].get<std::string>().empty());
  EXPECT_FALSE(record["hdf5"].get<std::string>().empty());
  EXPECT_EQ(record["nccl"].is_null(), build_info().cuda_compiler.empty());
  for (const auto& [name, value] : record["environment"].members()) EXPECT_TRUE(is_recorded(name)) << name;
}

TEST(Provenance, NamesMissingLibrariesPlainly) {
  Json program = program_record();
  for (const char* name : {"cuda", "nccl", "cublas", "commit", "dirty"}) program[name] = Json();
  const std::string text = program_text(program);
  EXPECT_EQ(text.substr(0, text.find('\n')), "switchyard " + build_info().version);
  for (const char* line : {"\ncommit       not known", "\nCUDA         not in this build\n",
                           "\nNCCL         not in this build\n", "\ncuBLAS       not in this build\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << " in\n" << text;
}

TEST(Provenance, HasPublicMembers) {
  const Json record = example_record(), brief = public_record(record);
  std::vector<std::string> names;
  for (const auto& [name, value] : brief.members()) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"program_version", "commit", "dirty", "processors", "gpus", "config_sha256"}));
  EXPECT_EQ(brief["config_sha256"], to_hex(sha256("[model]\n")));
  EXPECT_EQ(record_for(record, ProvenanceDetail::full), record);
  EXPECT_EQ(record_for(record, ProvenanceDetail::brief), brief);
  EXPECT_TRUE(public_record(Json()).is_null());
  EXPECT_EQ(provenance_line(record),
            "switchyard 1.2.3, commit cccccccccccc with local changes, 2 x EPYC, 1 x Xeon, 3 x "
            "H100, configuration " +
                to_hex(sha256("[model]\n")).substr(0, 12));
  EXPECT_EQ(provenance_line(Json()), "");
}

TEST(Provenance, AddsColumnsToCsv) {
  const Json record = example_record(), brief = public_record(record);
  const std::string csv = "a,b\n1,\"x\ny\"\n2,z\n";
  EXPECT_EQ(csv_with_provenance(csv, Json()), csv);
  const std::string cells =
      ",1.2.3," + std::string(40, 'c') + "-dirty,\"2 x EPYC, 1 x Xeon, 3 x H100\"," + to_hex(sha256("[model]\n"));
  EXPECT_EQ(csv_with_provenance(csv, brief),
            "a,b,version,commit,hardware,config_sha256\n1,\"x\ny\"" + cells + "\n2,z" + cells + "\n");
  const std::string full = csv_with_provenance(csv, record);
  EXPECT_TRUE(full.starts_with("a,b,version,commit,hardware,config_sha256,provenance\n1,\"x\ny\"" + cells +
                               ",\"{\"\"program_version"));
  EXPECT_TRUE(full.ends_with("\n2,z" + cells + ",\n")) << full;
}

TEST(Provenance, ComparesRecords) {
  const Json a = example_record();
  EXPECT_TRUE(provenance_differences(a, a).empty());
  Json b = a;
  b["date"] = "2027-01-01T00:00:00Z";
  EXPECT_TRUE(provenance_differences(a, b).empty());
  b["mpi"] = "MPI 10";
  b["environment"].append("UCX_TLS", "tcp");
  const auto d = provenance_differences(a, b);
  ASSERT_EQ(d.size(), 2u);
  EXPECT_EQ(d[0].name + ":" + d[0].first + ":" + d[0].second, "mpi:MPI 9:MPI 10");
  EXPECT_EQ(d[1].name + ":" + d[1].first + ":" + d[1].second, "environment.UCX_TLS::tcp");
  EXPECT_EQ(provenance_differences(Json(), a).size(), provenance_entries(a).size() - 1);  // no date
}

// A record may come from a damaged or foreign file.
TEST(Provenance, ReadsAnyText) {
  for (const char* text : {"", "no JSON", "[1]", "3", "{"}) EXPECT_TRUE(parse_record(text).is_null()) << text;
  const Json odd = parse_record(R"({"commit":7,"dirty":[1,[2]],"gpus":{"a":{"b":{"c":{"d":{"e":1}}}}}})");
  EXPECT_EQ(provenance_line(odd).find("switchyard"), 0u);
  EXPECT_EQ(provenance_entries(odd).size(), 3u);
  public_record(odd), csv_with_provenance("a\n1\n", odd);
}

// HDF5 stores an attribute of more than 64 KiB in another way.
TEST(Provenance, IsStoredInCheckpoints) {
  for (const std::size_t length : {std::size_t{0}, std::size_t{100}, std::size_t{300000}}) {
    const TempFolder run;
    TrainState state = test::example_state(200);
    state.provenance = std::string(length, 'x');
    const auto dir = test::write_as(run.path(), Layout{}, state);
    EXPECT_EQ(read_state(dir).provenance, state.provenance);
  }
}

TEST(Provenance, TakesTheMachinesOfRuns) {
  const TempFolder folder;
  std::vector<Training> runs(3);
  for (std::size_t i = 0; i < runs.size(); ++i) runs[i].run = folder.path() / std::to_string(i);
  for (const std::size_t i : {0u, 1u}) {
    make_folders(runs[i].run);
    const std::string host = "node" + std::to_string(i);
    write_file(runs[i].run / provenance_name, R"({"hosts":["old"]})"
                                              "\n"
                                              R"({"hosts":["login",")" +
                                                  host +
                                                  R"("],"gpus":["1 x H100"],"data_digest":"d"})"
                                                  "\n");
  }
  const Json record = with_runs({{"mpi", "MPI 9"}, {"hosts", Json::array({"here"})}}, runs);
  EXPECT_EQ(
      record.dump(),
      R"({"mpi":"MPI 9","hosts":["login","node0","node1"],"processors":[],"gpus":["1 x H100"],"data_digest":"d"})");
  EXPECT_EQ(with_runs({{"hosts", Json::array({"here"})}}, {runs[2]}).dump(), R"({"hosts":["here"]})");
}

}  // namespace
}  // namespace sy
