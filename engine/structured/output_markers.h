#pragma once
// The markers of the output that the vocabulary has tokens for (spec/chat.md 1.5).

#include <string_view>

namespace cedar::engine::structured {

constexpr std::string_view kEndOfReasoning = "</think>";
constexpr std::string_view kCallMarkup = "｜DSML｜";

}  // namespace cedar::engine::structured
