#pragma once
// What the subcommands ask of CLI11: numbers checked whole, and one meaning of the exit status.

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>

namespace cedar::apps {

/// The text is an integer of this range and nothing else. CLI11's own checks go through double, take what does
/// not fit for the nearest number that does, and let nan pass.
CLI::Validator integer_in(int64_t min, int64_t max);
/// An integer of 64 bits; whoever uses it checks the range.
CLI::Validator any_integer();
/// A finite number of this range.
CLI::Validator number_in(double min, double max);

/// Nothing: go on. Otherwise the exit status: 0 after --help, 2 after wrong usage, explained on stderr.
std::optional<int> parse_options(CLI::App& app, int argc, char** argv);

}  // namespace cedar::apps
