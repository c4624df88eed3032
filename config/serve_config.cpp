#include "config/serve_config.h"

#include <filesystem>

#include "config/serve_settings.h"
#include "config/settings_io.h"
#include "core/text_file.h"

namespace cedar::config {

namespace {

/// What only a node of a cluster can have.
void check_alone(const ServeConfig& config, SettingsChecker& checker) {
  checker.table("engine");
  if (config.engine.engram != "local") {
    checker.complain("engram", "must be \"local\" in a process that is no node of a cluster, got " +
                                   toml_string(config.engine.engram));
  }
}

}  // namespace

Result<ServeConfig> parse_serve_config(std::string_view toml_text, const std::string& source) {
  CEDAR_TRY(const toml::value root, parse_toml(toml_text, source));
  ServeConfig config;
  SettingsReader reader(root, source);
  visit_settings(config, reader);
  reader.complain_about_unknown();
  SettingsChecker checker(source + ": ");
  check_alone(config, checker);
  CEDAR_CHECK_OK(reader.result());
  CEDAR_CHECK_OK(checker.result());
  return config;
}

std::string beside(const std::string& file, const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty() || fs::path(path).is_absolute()) return path;
  return (fs::path(file).parent_path() / path).lexically_normal().string();
}

void resolve_paths(ServeConfig& config, const std::string& file) {
  const auto resolve = [&](std::string& path) { path = beside(file, path); };
  resolve(config.model.directory);
  resolve(config.actors.cache_directory);
  resolve(config.http.tls_certificate);
  resolve(config.http.tls_key);
  for (KeySettings& key : config.keys) resolve(key.file);
}

Result<ServeConfig> load_serve_config(const std::string& path) {
  CEDAR_TRY(const std::string text, read_text_file(path, FileKind::any));
  CEDAR_TRY(ServeConfig config, parse_serve_config(text, path));
  resolve_paths(config, path);
  return config;
}

Status validate(const ServeConfig& config) {
  SettingsChecker checker;
  visit_settings(config, checker);
  check_alone(config, checker);
  return checker.result();
}

std::string describe_serve_config() {
  const ServeConfig defaults;
  SettingsDescriber describer;
  describer.paragraph(
      "# Settings of `cedar serve`\n\n"
      "Every setting that a file for `cedar serve --config FILE` may hold, in TOML: a table per\n"
      "section, a key per row. Keys that are not listed are errors. Options of the command line\n"
      "win over the file. Relative paths in the file are relative to it, those of the command "
      "line\n"
      "to the working directory; certificates and keys must be regular files. `cedar config check\n"
      "FILE` says what is wrong with a file and with those that it names, this machine's "
      "environment\n"
      "included. This page is what `cedar config describe` prints.\n");
  visit_settings(defaults, describer);
  return describer.result();
}

}  // namespace cedar::config
