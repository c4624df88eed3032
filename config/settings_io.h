#pragma once
// Visitors of a settings list (serve_settings.h, cluster_settings.h): range check, TOML reader, TOML writer and
// documentation writer. They all take the same calls:
//   table(name), text(key, field, help), texts(key, field, help), flag(key, field, help),
//   choice(key, field, {..}, help), choices(key, field, {..}, help), integer(key, field, min, max, help),
//   list(name, field, help, visit), which calls visit(entry, visitor) for every table of the array [[name]]

#include <toml.hpp>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"

namespace cedar::config {

using Choices = std::initializer_list<std::string_view>;

std::string join(Choices choices);
/// As TOML writes a string.
std::string toml_string(const std::string& text);

/// Checks ranges; the first complaint stays. Base of the reader.
class SettingsChecker {
 public:
  /// `prefix` begins every complaint.
  explicit SettingsChecker(std::string prefix = {}) : prefix_(std::move(prefix)) {}

  void table(const std::string& name) { table_ = name; }
  void text(const char*, const std::string&, const char*) {}
  void texts(const char*, const std::vector<std::string>&, const char*) {}
  void flag(const char*, bool, const char*) {}
  void choice(const char* key, const std::string& value, Choices allowed, const char* help);
  void choices(const char* key, const std::vector<std::string>& values, Choices allowed,
               const char* help);
  void integer(const char* key, int64_t value, int64_t min, int64_t max, const char* help);
  template <class Entry, class Visit>
  void list(const std::string& name, const std::vector<Entry>& entries, const char*, Visit visit) {
    for (size_t i = 0; i < entries.size(); ++i) {
      table(element_name(name, i));
      visit(entries[i], *this);
    }
  }

  /// "`table`.`key` `what`", unless there was a complaint before.
  void complain(const std::string& key, const std::string& what);
  Status result() const;

 protected:
  static std::string element_name(const std::string& name, size_t index) {
    return name + '[' + std::to_string(index) + ']';
  }

  std::string prefix_;
  std::string table_;
  std::string complaint_;
};

/// Fields keep their value where the file says nothing.
class SettingsReader : public SettingsChecker {
 public:
  /// `root` must live as long as the reader.
  SettingsReader(const toml::value& root, const std::string& source)
      : SettingsChecker(source + ": "), root_(root) {}

  void table(const std::string& name);
  /// What follows is read from `value`, a table that complaints call `name`.
  void element(const toml::value& value, const std::string& name);
  /// The tables of the array `name` ([[name]] in the file); none when it is absent.
  std::vector<const toml::value*> array(const std::string& name);

  void text(const char* key, std::string& field, const char* help);
  void texts(const char* key, std::vector<std::string>& field, const char* help);
  void flag(const char* key, bool& field, const char* help);
  void choice(const char* key, std::string& field, Choices allowed, const char* help);
  void choices(const char* key, std::vector<std::string>& field, Choices allowed, const char* help);
  void integer(const char* key, int64_t& field, int64_t min, int64_t max, const char* help);
  template <class Entry, class Visit>
  void list(const std::string& name, std::vector<Entry>& entries, const char*, Visit visit) {
    entries.clear();
    for (const toml::value* item : array(name)) {
      element(*item, element_name(name, entries.size()));
      visit(entries.emplace_back(), *this);
    }
  }

  /// After the visit: keys of the file that no setting asked for.
  void complain_about_unknown();

 private:
  const toml::value* find(const char* key);
  void complain_unknown(const std::string& path);
  void check_keys(const toml::value& table, const std::string& name);

  const toml::value& root_;
  const toml::value* current_ = nullptr;
  std::set<std::string> known_tables_;
  std::set<std::string> known_keys_;
  std::vector<std::pair<const toml::value*, std::string>> elements_;
};

/// TOML of every setting with its value.
class SettingsWriter {
 public:
  void table(const std::string& name) { out_ << "\n[" << name << "]\n"; }
  void text(const char* key, const std::string& value, const char* help);
  void texts(const char* key, const std::vector<std::string>& values, const char* help);
  void flag(const char* key, bool value, const char* help);
  void choice(const char* key, const std::string& value, Choices allowed, const char* help);
  void choices(const char* key, const std::vector<std::string>& values, Choices allowed,
               const char* help);
  void integer(const char* key, int64_t value, int64_t min, int64_t max, const char* help);
  template <class Entry, class Visit>
  void list(const std::string& name, const std::vector<Entry>& entries, const char*, Visit visit) {
    for (const Entry& entry : entries) {
      table('[' + name + ']');
      visit(entry, *this);
    }
  }
  std::string result() const { return out_.str(); }

 private:
  std::ostringstream out_;
};

/// Markdown tables of key, default, range and meaning.
class SettingsDescriber {
 public:
  void paragraph(std::string_view text) { out_ << text; }
  /// `help`: a sentence about the table; may be empty.
  void table(const std::string& name, const std::string& help = {});
  void text(const char* key, const std::string& value, const char* help);
  void texts(const char* key, const std::vector<std::string>& values, const char* help);
  void flag(const char* key, bool value, const char* help);
  void choice(const char* key, const std::string& value, Choices allowed, const char* help);
  void choices(const char* key, const std::vector<std::string>& values, Choices allowed,
               const char* help);
  void integer(const char* key, int64_t value, int64_t min, int64_t max, const char* help);
  template <class Entry, class Visit>
  void list(const std::string& name, const std::vector<Entry>&, const char* help, Visit visit) {
    table("[[" + name + "]]", help);
    const Entry example{};
    visit(example, *this);
  }
  std::string result() const { return out_.str(); }

 private:
  void row(const char* key, const std::string& value, const std::string& allowed, const char* help);
  std::ostringstream out_;
};

/// Errors: invalid_config with the parser's words.
Result<toml::value> parse_toml(std::string_view text, const std::string& source);

}  // namespace cedar::config
