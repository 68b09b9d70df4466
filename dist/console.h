// Standard streams of a rank: errors, warnings, their log, and lost output.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace sy {

// Opens closed standard streams, so that no file gets their descriptors.
// Reads and writes of these streams still fail.
void open_standard_streams();

// Flushes standard output. Returns why output to it was lost (full disk, closed stream).
// Empty if all output was written. Reports each loss once.
std::string output_error();

// Returns `text` on one line: control characters become blanks.
std::string one_line(std::string text);
// Returns the printed form of an error: "switchyard: " and the lines of `what`.
std::string error_lines(const std::string& what);
// Prints error_lines() to standard error, and to the log of attach_console_log().
void print_error(const std::string& what);
// Returns true after print_error() has printed an error. A warning is no error.
bool has_printed_error();
// Prints "switchyard: warning: TEXT" to standard error, and to the log of attach_console_log().
// If the warning is the same for all ranks, call it on one rank only.
void warn(const std::string& text);

// Writes a heading to the file. From then on, the file gets a copy of this process's warnings and
// errors, including up to 64 KiB of those printed before. Call it at most once.
// The caller must leave the file open until the process ends.
void attach_console_log(std::FILE* file, std::string_view heading);
// Appends `text`, which the caller has printed itself, to the copy in that file.
// Write errors do not throw: console_log_error() reports them.
void log_console(std::string_view text);
// Returns the reason of the first failed write to that file.
// Empty if no write failed, or if there is no file.
std::string console_log_error();

}  // namespace sy
