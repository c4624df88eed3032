#include "config/serve_config.h"

#include <toml.hpp>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <sstream>

#include "config/serve_settings.h"
#include "core/text_file.h"

namespace cedar::config {
namespace {

using Choices = std::initializer_list<std::string_view>;

std::string join(Choices choices) {
  std::string text;
  for (std::string_view choice : choices) text.append(text.empty() ? "" : ", ").append(choice);
  return text;
}

/// Checks ranges; the first complaint stays. Base of the reader.
class Checker {
 public:
  void table(const char* name) { table_ = name; }
  void text(const char*, const std::string&, const char*) {}
  void texts(const char*, const std::vector<std::string>&, const char*) {}
  void choice(const char* key, const std::string& value, Choices allowed, const char*) {
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
      complain(key, "must be one of " + join(allowed) + ", got \"" + value + '"');
    }
  }
  void integer(const char* key, int64_t value, int64_t min, int64_t max, const char*) {
    if (value < min || value > max) {
      complain(key, "must be in [" + std::to_string(min) + ", " + std::to_string(max) + "], got " +
                        std::to_string(value));
    }
  }
  Status result() const {
    if (complaint_.empty()) return {};
    return make_error(Errc::invalid_config, complaint_);
  }

 protected:
  void complain(const std::string& key, const std::string& what) {
    if (complaint_.empty()) complaint_ = prefix_ + table_ + '.' + key + ' ' + what;
  }
  std::string prefix_;
  std::string table_;
  std::string complaint_;
};

class Reader : public Checker {
 public:
  Reader(const toml::value& root, const std::string& source) : root_(root) {
    prefix_ = source + ": ";
  }

  void table(const char* name) {
    Checker::table(name);
    known_tables_.insert(name);
    current_ = nullptr;
    if (!root_.contains(name)) return;
    const toml::value& value = root_.at(name);
    if (value.is_table()) {
      current_ = &value;
    } else if (complaint_.empty()) {
      complaint_ = prefix_ + name + " must be a table";
    }
  }
  void text(const char* key, std::string& field, const char*) {
    if (const toml::value* value = find(key)) {
      if (value->is_string()) {
        field = value->as_string().str;
      } else {
        complain(key, "must be a string");
      }
    }
  }
  void texts(const char* key, std::vector<std::string>& field, const char*) {
    const toml::value* value = find(key);
    if (value == nullptr) return;
    field.clear();
    if (!value->is_array()) return complain(key, "must be an array of strings");
    for (const toml::value& item : value->as_array()) {
      if (!item.is_string()) return complain(key, "must be an array of strings");
      field.push_back(item.as_string().str);
    }
  }
  void choice(const char* key, std::string& field, Choices allowed, const char* help) {
    text(key, field, help);
    Checker::choice(key, field, allowed, help);
  }
  void integer(const char* key, int64_t& field, int64_t min, int64_t max, const char* help) {
    if (const toml::value* value = find(key)) {
      if (!value->is_integer()) return complain(key, "must be an integer");
      field = value->as_integer();
    }
    Checker::integer(key, field, min, max, help);
  }

  /// After the visit: keys of the file that no setting asked for.
  void complain_about_unknown() {
    for (const auto& [name, value] : root_.as_table()) {
      if (known_tables_.count(name) == 0) return complain_unknown(name);
      if (!value.is_table()) continue;
      for (const auto& [key, unused] : value.as_table()) {
        if (known_keys_.count(name + '.' + key) == 0) return complain_unknown(name + '.' + key);
      }
    }
  }

 private:
  const toml::value* find(const char* key) {
    known_keys_.insert(table_ + '.' + key);
    if (current_ == nullptr || !current_->contains(key)) return nullptr;
    return &current_->at(key);
  }
  void complain_unknown(const std::string& path) {
    if (complaint_.empty()) complaint_ = prefix_ + path + " is no known setting";
  }

  const toml::value& root_;
  const toml::value* current_ = nullptr;
  std::set<std::string> known_tables_;
  std::set<std::string> known_keys_;
};

class Describer {
 public:
  Describer() {
    out_ << "# Settings of `cedar serve`\n\n"
            "Every setting that a file for `cedar serve --config FILE` may hold, in TOML: a table "
            "per\n"
            "section, a key per row. Keys that are not listed are errors. Options of the command "
            "line\n"
            "win over the file. This page is what `cedar config describe` prints.\n";
  }
  void table(const char* name) {
    out_ << "\n## " << name << "\n\n| key | default | allowed | meaning |\n|---|---|---|---|\n";
  }
  void text(const char* key, const std::string& value, const char* help) {
    row(key, '"' + value + '"', "string", help);
  }
  void texts(const char* key, const std::vector<std::string>&, const char* help) {
    row(key, "[]", "array of strings", help);
  }
  void choice(const char* key, const std::string& value, Choices allowed, const char* help) {
    row(key, '"' + value + '"', join(allowed), help);
  }
  void integer(const char* key, int64_t value, int64_t min, int64_t max, const char* help) {
    row(key, std::to_string(value), std::to_string(min) + " .. " + std::to_string(max), help);
  }
  std::string result() const { return out_.str(); }

 private:
  void row(const char* key, const std::string& value, const std::string& allowed,
           const char* help) {
    out_ << "| `" << key << "` | `" << value << "` | " << allowed << " | " << help << " |\n";
  }
  std::ostringstream out_;
};

Result<ServeConfig> read(std::istream& in, const std::string& source) {
  toml::value root;
  try {
    root = toml::parse(in, source);
  } catch (const std::exception& e) {
    return make_error(Errc::invalid_config, e.what());
  }
  ServeConfig config;
  Reader reader(root, source);
  visit_settings(config, reader);
  reader.complain_about_unknown();
  CEDAR_CHECK_OK(reader.result());
  return config;
}

}  // namespace

Result<ServeConfig> parse_serve_config(std::string_view toml_text, const std::string& source) {
  std::istringstream in{std::string(toml_text)};
  return read(in, source);
}

Result<ServeConfig> load_serve_config(const std::string& path) {
  CEDAR_TRY(const std::string text, read_text_file(path, FileKind::any));
  return parse_serve_config(text, path);
}

Status validate(const ServeConfig& config) {
  Checker checker;
  visit_settings(config, checker);
  return checker.result();
}

std::string describe_serve_config() {
  const ServeConfig defaults;
  Describer describer;
  visit_settings(defaults, describer);
  return describer.result();
}

}  // namespace cedar::config
