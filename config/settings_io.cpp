#include "config/settings_io.h"

#include <utility>

namespace cedar::config {

std::string join(Choices choices) {
  std::string text;
  for (std::string_view choice : choices) text.append(text.empty() ? "" : ", ").append(choice);
  return text;
}

std::string toml_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') out += "\\n";
    else out += c;
  }
  return out + '"';
}

namespace {

bool allows(Choices allowed, const std::string& value) {
  return std::find(allowed.begin(), allowed.end(), value) != allowed.end();
}

std::string array_of(const std::vector<std::string>& values) {
  std::string text = "[";
  for (const std::string& value : values) {
    text.append(text.size() == 1 ? "" : ", ").append(toml_string(value));
  }
  return text + ']';
}

}  // namespace

// --- checker ---------------------------------------------------------------------------------------------

void SettingsChecker::complain(const std::string& key, const std::string& what) {
  if (complaint_.empty()) complaint_ = prefix_ + table_ + '.' + key + ' ' + what;
}

Status SettingsChecker::result() const {
  if (complaint_.empty()) return {};
  return make_error(Errc::invalid_config, complaint_);
}

void SettingsChecker::choice(const char* key, const std::string& value, Choices allowed,
                             const char*) {
  if (!allows(allowed, value)) {
    complain(key, "must be one of " + join(allowed) + ", got \"" + value + '"');
  }
}

void SettingsChecker::choices(const char* key, const std::vector<std::string>& values,
                              Choices allowed, const char*) {
  for (const std::string& value : values) {
    if (!allows(allowed, value)) {
      complain(key, "may hold " + join(allowed) + ", got \"" + value + '"');
    }
  }
}

void SettingsChecker::integer(const char* key, int64_t value, int64_t min, int64_t max,
                              const char*) {
  if (value < min || value > max) {
    complain(key, "must be in [" + std::to_string(min) + ", " + std::to_string(max) + "], got " +
                      std::to_string(value));
  }
}

// --- reader ----------------------------------------------------------------------------------------------

void SettingsReader::table(const std::string& name) {
  SettingsChecker::table(name);
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

void SettingsReader::element(const toml::value& value, const std::string& name) {
  SettingsChecker::table(name);
  current_ = &value;
  elements_.emplace_back(&value, name);
}

std::vector<const toml::value*> SettingsReader::array(const std::string& name) {
  known_tables_.insert(name);
  std::vector<const toml::value*> elements;
  if (!root_.contains(name)) return elements;
  const auto complain_kind = [&] {
    if (complaint_.empty()) {
      complaint_ = prefix_ + name + " must be an array of tables, [[" + name + "]]";
    }
  };
  const toml::value& value = root_.at(name);
  if (!value.is_array()) {
    complain_kind();
    return elements;
  }
  for (const toml::value& item : value.as_array()) {
    if (item.is_table()) elements.push_back(&item);
    else complain_kind();
  }
  return elements;
}

void SettingsReader::text(const char* key, std::string& field, const char*) {
  if (const toml::value* value = find(key)) {
    if (value->is_string()) {
      field = value->as_string().str;
    } else {
      complain(key, "must be a string");
    }
  }
}

void SettingsReader::texts(const char* key, std::vector<std::string>& field, const char*) {
  const toml::value* value = find(key);
  if (value == nullptr) return;
  field.clear();
  if (!value->is_array()) return complain(key, "must be an array of strings");
  for (const toml::value& item : value->as_array()) {
    if (!item.is_string()) return complain(key, "must be an array of strings");
    field.push_back(item.as_string().str);
  }
}

void SettingsReader::flag(const char* key, bool& field, const char*) {
  const toml::value* value = find(key);
  if (value == nullptr) return;
  if (!value->is_boolean()) return complain(key, "must be true or false");
  field = value->as_boolean();
}

void SettingsReader::choice(const char* key, std::string& field, Choices allowed,
                            const char* help) {
  text(key, field, help);
  SettingsChecker::choice(key, field, allowed, help);
}

void SettingsReader::choices(const char* key, std::vector<std::string>& field, Choices allowed,
                             const char* help) {
  texts(key, field, help);
  SettingsChecker::choices(key, field, allowed, help);
}

void SettingsReader::integer(const char* key, int64_t& field, int64_t min, int64_t max,
                             const char* help) {
  if (const toml::value* value = find(key)) {
    if (!value->is_integer()) return complain(key, "must be an integer");
    field = value->as_integer();
  }
  SettingsChecker::integer(key, field, min, max, help);
}

void SettingsReader::complain_about_unknown() {
  for (const auto& [name, value] : root_.as_table()) {
    if (known_tables_.count(name) == 0) return complain_unknown(name);
    if (value.is_table()) check_keys(value, name);
  }
  for (const auto& [value, name] : elements_) check_keys(*value, name);
}

void SettingsReader::check_keys(const toml::value& table, const std::string& name) {
  for (const auto& [key, unused] : table.as_table()) {
    if (known_keys_.count(name + '.' + key) == 0) return complain_unknown(name + '.' + key);
  }
}

const toml::value* SettingsReader::find(const char* key) {
  known_keys_.insert(table_ + '.' + key);
  if (current_ == nullptr || !current_->contains(key)) return nullptr;
  return &current_->at(key);
}

void SettingsReader::complain_unknown(const std::string& path) {
  if (complaint_.empty()) complaint_ = prefix_ + path + " is no known setting";
}

// --- writer ----------------------------------------------------------------------------------------------

void SettingsWriter::text(const char* key, const std::string& value, const char*) {
  out_ << key << " = " << toml_string(value) << '\n';
}
void SettingsWriter::texts(const char* key, const std::vector<std::string>& values, const char*) {
  out_ << key << " = " << array_of(values) << '\n';
}
void SettingsWriter::flag(const char* key, bool value, const char*) {
  out_ << key << " = " << (value ? "true" : "false") << '\n';
}
void SettingsWriter::choice(const char* key, const std::string& value, Choices, const char* help) {
  text(key, value, help);
}
void SettingsWriter::choices(const char* key, const std::vector<std::string>& values, Choices,
                             const char* help) {
  texts(key, values, help);
}
void SettingsWriter::integer(const char* key, int64_t value, int64_t, int64_t, const char*) {
  out_ << key << " = " << value << '\n';
}

// --- describer -------------------------------------------------------------------------------------------

void SettingsDescriber::table(const std::string& name, const std::string& help) {
  out_ << "\n## " << name << "\n\n"
       << help << (help.empty() ? "" : "\n\n")
       << "| key | default | allowed | meaning |\n|---|---|---|---|\n";
}
void SettingsDescriber::text(const char* key, const std::string& value, const char* help) {
  row(key, toml_string(value), "string", help);
}
void SettingsDescriber::texts(const char* key, const std::vector<std::string>&, const char* help) {
  row(key, "[]", "array of strings", help);
}
void SettingsDescriber::flag(const char* key, bool value, const char* help) {
  row(key, value ? "true" : "false", "true, false", help);
}
void SettingsDescriber::choice(const char* key, const std::string& value, Choices allowed,
                               const char* help) {
  row(key, toml_string(value), join(allowed), help);
}
void SettingsDescriber::choices(const char* key, const std::vector<std::string>& values,
                                Choices allowed, const char* help) {
  row(key, array_of(values), "array of " + join(allowed), help);
}
void SettingsDescriber::integer(const char* key, int64_t value, int64_t min, int64_t max,
                                const char* help) {
  row(key, std::to_string(value), std::to_string(min) + " .. " + std::to_string(max), help);
}
void SettingsDescriber::row(const char* key, const std::string& value, const std::string& allowed,
                            const char* help) {
  out_ << "| `" << key << "` | `" << value << "` | " << allowed << " | " << help << " |\n";
}

Result<toml::value> parse_toml(std::string_view text, const std::string& source) {
  std::istringstream in{std::string(text)};
  try {
    return toml::parse(in, source);
  } catch (const std::exception& e) {
    return make_error(Errc::invalid_config, e.what());
  }
}

}  // namespace cedar::config
