// PyTorch as a child process that takes turns with Switchyard. Its protocols are in pytorch_step.py
// and transformers_generate.py.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/tensor.h"
#include "src/text/json.h"

namespace sy::bench {

class Peer {
 public:
  // Runs `COMMAND --serve` with these options.
  Peer(std::vector<std::string> command, const std::vector<std::pair<std::string, Index>>& options) {
    signal(SIGPIPE, SIG_IGN);
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0) return;
    command.push_back("--serve");
    for (const auto& [name, value] : options) {
      command.push_back(name);
      command.push_back(std::to_string(value));
    }
    child_ = fork();
    if (child_ == 0) {
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      for (int f : {to[0], to[1], from[0], from[1]}) close(f);
      std::vector<char*> argv;
      for (std::string& a : command) argv.push_back(a.data());
      argv.push_back(nullptr);
      execvp(argv[0], argv.data());
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    in_ = fdopen(to[1], "w");
    out_ = fdopen(from[0], "r");
    hello_ = read();
  }
  ~Peer() {
    if (in_) fclose(in_);
    if (out_) fclose(out_);
    if (child_ > 0) waitpid(child_, nullptr, 0);
  }
  Peer(const Peer&) = delete;

  // ready: true if that Python has PyTorch. hello: the first message of the peer.
  bool ready() const { return hello_.contains("ready") && hello_.at("ready").get<bool>(); }
  const Json& hello() const { return hello_; }
  // Sends a request and returns the answer, with the seconds that it took. Throws Failure if the
  // peer has ended.
  Json ask(const Json& request) {
    fmt::print(in_, "{}\n", request.dump());
    fflush(in_);
    Json answer = read();
    if (!answer.contains("seconds")) fail("PyTorch ended before its turn did: see what it printed");
    return answer;
  }
  // Seconds of n repetitions.
  double seconds(Index n) { return ask(n)["seconds"].get<double>(); }

 private:
  Json read() {
    std::string line;
    for (int c; (c = fgetc(out_)) != EOF && c != '\n';) line += static_cast<char>(c);
    return line.empty() ? Json::object() : Json::parse(line);
  }
  pid_t child_ = -1;
  FILE *in_ = nullptr, *out_ = nullptr;
  Json hello_ = Json::object();
};

}  // namespace sy::bench
