#include "config/serve_config.h"

#include "config/serve_settings.h"
#include "config/settings_io.h"
#include "core/text_file.h"

namespace cedar::config {

Result<ServeConfig> parse_serve_config(std::string_view toml_text, const std::string& source) {
  CEDAR_TRY(const toml::value root, parse_toml(toml_text, source));
  ServeConfig config;
  SettingsReader reader(root, source);
  visit_settings(config, reader);
  reader.complain_about_unknown();
  CEDAR_CHECK_OK(reader.result());
  return config;
}

Result<ServeConfig> load_serve_config(const std::string& path) {
  CEDAR_TRY(const std::string text, read_text_file(path, FileKind::any));
  return parse_serve_config(text, path);
}

Status validate(const ServeConfig& config) {
  SettingsChecker checker;
  visit_settings(config, checker);
  return checker.result();
}

std::string describe_serve_config() {
  const ServeConfig defaults;
  SettingsDescriber describer;
  describer.paragraph(
      "# Settings of `cedar serve`\n\n"
      "Every setting that a file for `cedar serve --config FILE` may hold, in TOML: a table per\n"
      "section, a key per row. Keys that are not listed are errors. Options of the command line\n"
      "win over the file. This page is what `cedar config describe` prints.\n");
  visit_settings(defaults, describer);
  return describer.result();
}

}  // namespace cedar::config
