#include "engine/verify/verify.h"

#include <algorithm>

#include "engine/verify/checks.h"

namespace cedar::engine::verify {
namespace {

struct Group {
  const char* name;
  void (*check)(Session&);
};

constexpr Group kGroups[] = {
    {"units", check_units},
    {"manifest", check_manifest},
    {"selection", check_selection},
    {"stage", check_stages},
    {"run", check_runs},
    {"guided", check_guided},
    {"decode", check_decode},
    {"dspark", check_drafts},
    {"vision", check_vision},
    {"consistency", check_consistency},
    {"prompts", check_prompts},
};

/// Groups that read a folder with manifest.json; the others read both kinds of folder, or prompts.json.
bool needs_manifest(const std::string& group) {
  return group != "consistency" && group != "prompts";
}

bool wanted(const VerifyOptions& options, const std::string& group) {
  return options.groups.empty() ||
         std::find(options.groups.begin(), options.groups.end(), group) != options.groups.end();
}

void report_files(Session& session, bool all_groups) {
  Report& report = session.report();
  for (auto& [stem, file] : session.golden().files()) {
    for (const std::string& problem : file.problems()) {
      report.fail(kGoldenShape, stem + ".safetensors: " + problem, "unexpected type or shape");
    }
    if (!all_groups) continue;
    const std::vector<std::string> unread = file.unread();
    report.check(kGoldenRead, static_cast<double>(unread.size()), stem + ".safetensors",
                 unread.empty() ? "" : "unknown, or without what it belongs to: " + unread.front());
  }
}

}  // namespace

std::vector<std::string> groups() {
  std::vector<std::string> out;
  for (const Group& group : kGroups) out.emplace_back(group.name);
  return out;
}

Result<Report> verify(std::shared_ptr<const LoadedModel> model, const std::string& model_directory,
                      const std::string& golden_directory, const VerifyOptions& options) {
  const std::vector<std::string> known = groups();
  for (const std::string& group : options.groups) {
    if (std::find(known.begin(), known.end(), group) == known.end()) {
      return make_error(Errc::invalid_argument, "groups: there is no group '" + group + "'");
    }
  }
  CEDAR_TRY(const std::unique_ptr<Session> session,
            Session::create(std::move(model), model_directory, golden_directory, options));
  for (const Group& group : kGroups) {
    if (!wanted(options, group.name)) continue;
    if (needs_manifest(group.name) && !session->golden().has_manifest()) continue;
    group.check(*session);
  }
  report_files(*session, options.groups.empty());
  return std::move(session->report());
}

}  // namespace cedar::engine::verify
