// The formats of JSON Schema that a pattern can say. Where a format allows more than is useful (addresses with
// comments, IPv6 in short form), the pattern is a part of it.

#include <map>

#include "engine/structured/string_rules.h"

namespace cedar::engine::structured {
namespace {

using Patterns = std::map<std::string, std::string, std::less<>>;

/// Days exist: 30 and 31 by month, 29 February in leap years.
std::string date() {
  const std::string leap = "(?:0[48]|[2468][048]|[13579][26])";
  return "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
         "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|"
         "(?:[0-9]{2}" +
         leap + "|" + leap + "00)-02-29)";
}

std::string time() {
  const std::string clock = "(?:[01][0-9]|2[0-3]):[0-5][0-9]";
  return clock + ":[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-]" + clock + ")";
}

/// Units from large to small, none left out between two.
std::string duration() {
  const std::string n = "[0-9]{1,9}";
  const std::string seconds = n + "S", minutes = n + "M(?:" + seconds + ")?";
  const std::string clock = "T(?:" + n + "H(?:" + minutes + ")?|" + minutes + "|" + seconds + ")";
  const std::string days = n + "D", months = n + "M(?:" + days + ")?";
  const std::string calendar = "(?:" + n + "Y(?:" + months + ")?|" + months + "|" + days + ")";
  return "P(?:" + n + "W|" + calendar + "(?:" + clock + ")?|" + clock + ")";
}

Patterns make_patterns() {
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?";
  const std::string octet = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  const std::string atom = "[A-Za-z0-9_+-]+";
  const std::string path = "[A-Za-z0-9._~!$&'()*+,;=:@-]*";
  const std::string query = "[A-Za-z0-9._~!$&'()*+,;=:@/?-]*";
  const std::string hex = "[0-9a-fA-F]";
  Patterns patterns{
      {"date", date()},
      {"time", time()},
      {"date-time", date() + "T" + time()},
      {"duration", duration()},
      {"uuid", hex + "{8}-" + hex + "{4}-" + hex + "{4}-" + hex + "{4}-" + hex + "{12}"},
      {"email", atom + "(?:\\." + atom + ")*@" + label + "(?:\\." + label + ")+"},
      {"hostname", label + "(?:\\." + label + "){0,6}"},
      {"ipv4", octet + "(?:\\." + octet + "){3}"},
      {"ipv6", hex + "{1,4}(?::" + hex + "{1,4}){7}"},
      {"uri", "[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9._~-]+(?::[0-9]{1,5})?(?:/" + path + ")*(?:\\?" +
                  query + ")?(?:#" + query + ")?"},
  };
  for (auto& [name, pattern] : patterns) pattern = "^" + pattern + "$";
  return patterns;
}

}  // namespace

const std::string* pattern_of_format(std::string_view format) {
  static const Patterns patterns = make_patterns();
  const auto found = patterns.find(format);
  return found == patterns.end() ? nullptr : &found->second;
}

}  // namespace cedar::engine::structured
