#include "src/io/manifest.h"

#include <algorithm>
#include <charconv>

#include "src/io/checkpoint_formats.h"
#include "src/system/digest.h"
#include "src/system/files.h"
#include "src/text/json.h"
#include "src/text/table.h"

namespace sy {

namespace fs = std::filesystem;

namespace {

constexpr const char* format_name = "switchyard checkpoint";

// Returns the absolute path without a trailing slash, also for "..", "." and "x/".
fs::path full_path(const fs::path& folder) {
  // The empty name appends a slash; parent_path() removes it.
  return (fs::absolute(folder) / "").lexically_normal().parent_path();
}

// Returns a message if a file has another digest than in the manifest, or if its FileCheck finds a
// problem. Returns "" otherwise.
// content: the bytes; nullptr to read them from the file
std::string digest_problem(const fs::path& path, const Manifest& manifest, const Manifest::File& file,
                           const std::string_view* content) {
  Sha256 hash;
  const std::unique_ptr<FileCheck> format_check = format_of(manifest).make_check();
  ++digest_counts().files;
  const auto scan = [&](std::string_view chunk) {
    hash.update(chunk.data(), chunk.size());
    if (format_check) format_check->scan(chunk);
    digest_counts().bytes += chunk.size();
  };
  if (content)
    scan(*content);
  else
    read_chunks(path, scan);
  if (to_hex(hash.finish()) != file.sha256) return path.string() + " is damaged: its SHA-256 is not the manifest's";
  return format_check ? format_check->problem(path, content) : "";
}

}  // namespace

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.insert(it->path().filename().string());
  const bool is_missing = error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !(is_missing && !is_folder(folder))) bad_input("cannot read {}: {}", folder.string(), error.message());
  return names;
}

std::string to_text(const Manifest& manifest) {
  Json json;
  json["format"] = format_name;
  json["version"] = checkpoint_format;
  json["step"] = manifest.step;
  Json& files = json["files"] = Json::object();
  for (const Manifest::File& file : manifest.files)
    files.append(file.name, {{"bytes", file.bytes}, {"sha256", file.sha256}});
  json["sha256"] = to_hex(sha256(json.dump()));
  return json_text(json);
}

std::string read_manifest_text(const fs::path& step_dir) {
  const fs::path path = step_dir / manifest_name;
  if (!is_folder(step_dir))
    bad_input("{} is no checkpoint folder: give a run folder or a step folder within RUN/checkpoints",
              step_dir.string());
  const fs::file_type type = file_type(path);
  if (type == fs::file_type::not_found)
    bad_input("{} is missing: {} is no checkpoint, or not a whole one", path.string(), step_dir.string());
  constexpr std::uintmax_t max_bytes = 1 << 25;  // about 280,000 files
  std::error_code error;                         // read_file() reports it
  if (type != fs::file_type::regular || (fs::file_size(path, error) > max_bytes && !error))
    bad_input("{} is no manifest: use another checkpoint", path.string());
  return read_file(path);
}

Manifest parse_manifest(const std::string& text, const fs::path& step_dir) {
  const fs::path path = step_dir / manifest_name;
  Manifest manifest;
  try {
    const Json json = Json::parse(text);
    if (json.at("format") != format_name) bad_input("{} does not describe a checkpoint of Switchyard", path.string());
    if (const auto version = json.at("version").get<Index>(); version != checkpoint_format)
      bad_input("{} has format version {}, this program reads version {}: use the program that wrote it", path.string(),
                version, checkpoint_format);
    manifest.step = json.at("step").get<Index>();
    std::set<std::string_view> names;
    for (const auto& [name, file] : json.at("files").members()) {
      if (!is_plain_name(name) || !names.insert(name).second)
        bad_input("{} names the file '{}'{}: use another checkpoint", path.string(), visible(name),
                  is_plain_name(name) ? " twice" : ", which is no file of its folder");
      manifest.files.push_back({name, file.at("bytes").get<Index>(), file.at("sha256").get<std::string>()});
    }
  } catch (const JsonError&) {
    bad_input("{} is damaged: use another checkpoint", path.string());
  }
  if (to_text(manifest) != text) bad_input("{} is damaged: use another checkpoint", path.string());
  if (const auto named = step_of(full_path(step_dir).filename().string()); named && *named != manifest.step)
    bad_input("{} holds step {}: rename it to {}, or remove it", step_dir.string(), manifest.step,
              step_name(manifest.step));
  return manifest;
}

Manifest read_manifest(const fs::path& step_dir) {
  return parse_manifest(read_manifest_text(step_dir), step_dir);
}

std::string size_problem(const fs::path& path, Index expected) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (type == fs::file_type::not_found) return path.string() + " is missing";
  if (type == fs::file_type::none) return fmt::format("{} cannot be read: {}", path.string(), error.message());
  if (type != fs::file_type::regular) return path.string() + " is no regular file";
  const auto bytes = fs::file_size(path, error);
  if (error) return fmt::format("{} cannot be read: {}", path.string(), error.message());
  if (static_cast<Index>(bytes) == expected) return "";
  return fmt::format("{} has {} bytes instead of {}", path.string(), bytes, expected);
}

std::vector<std::string> file_problems(const fs::path& step_dir, const Manifest& manifest, CheckFiles check,
                                       const std::set<std::string>* names) {
  std::vector<std::string> problems;
  for (const Manifest::File& file : manifest.files) {
    if (names && !names->contains(file.name)) continue;
    const fs::path path = step_dir / file.name;
    std::string problem = size_problem(path, file.bytes);
    if (problem.empty() && check == CheckFiles::digests) {
      try {
        problem = digest_problem(path, manifest, file, nullptr);
      } catch (const InputError& e) {
        problem = e.what();
      }
    }
    if (!problem.empty()) problems.push_back(std::move(problem));
  }
  return problems;
}

std::string content_problem(const fs::path& step_dir, const Manifest& manifest, const Manifest::File& file,
                            std::string_view content) {
  return digest_problem(step_dir / file.name, manifest, file, &content);
}

DigestCounts& digest_counts() {
  static DigestCounts counts;
  return counts;
}

std::set<std::string> shard_share(const Manifest& manifest, int index, int size) {
  const CheckpointFormat& format = format_of(manifest);
  std::set<std::string> names;
  int shard = 0;
  for (const Manifest::File& file : manifest.files) {
    const bool is_index = file.name == format.index_name() || format.is_linked_index(file.name);
    if (!is_index && shard++ % size == index) names.insert(file.name);
  }
  return names;
}

fs::path checkpoints_of(const fs::path& run_dir) {
  return run_dir / "checkpoints";
}
std::optional<fs::path> run_of(const fs::path& step_dir) {
  const fs::path checkpoints = full_path(step_dir).parent_path();
  if (checkpoints != checkpoints_of(checkpoints.parent_path())) return {};
  return checkpoints.parent_path();
}
std::string step_name(Index step) {
  return fmt::format("step-{:08}", step);
}

std::optional<Index> step_of(const std::string& name) {
  constexpr std::string_view prefix = "step-";
  Index step = -1;
  if (!name.starts_with(prefix)) return {};
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  if (step < 0 || step_name(step) != name) return {};
  return step;
}

std::vector<Index> steps_in(const fs::path& checkpoints) {
  std::vector<Index> steps;
  for (const std::string& name : names_in(checkpoints))
    if (const auto step = step_of(name)) steps.push_back(*step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

}  // namespace sy
