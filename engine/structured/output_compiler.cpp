#include "engine/structured/output_compiler.h"

#include <algorithm>
#include <utility>

#include "engine/structured/output_markers.h"
#include "engine/structured/schema_compiler.h"

namespace cedar::engine::structured {
namespace {

void add_marker(Graph& graph, Vertex from, std::string_view spelling, TokenId token, Vertex to) {
  if (token >= 0) {
    graph.token(from, token, to);
  } else {
    graph.literal(from, spelling, to);
  }
}

/// The parts of call markup (spec/chat.md 2.8).
class CallMarkup {
 public:
  CallMarkup(Graph& graph, const MarkerTokens& tokens) : graph_(graph), tokens_(tokens) {}

  /// "<" or "</", the marker, then `text`.
  Vertex add_tag(Vertex from, std::string_view open, std::string_view text) {
    const Vertex marker = graph_.add_vertex(), rest = graph_.add_vertex();
    const Vertex end = graph_.add_vertex();
    graph_.literal(from, open, marker);
    add_marker(graph_, marker, kCallMarkup, tokens_.call_markup, rest);
    graph_.literal(rest, text, end);
    return end;
  }
  void add_tag(Vertex from, std::string_view open, std::string_view text, Vertex to) {
    graph_.jump(add_tag(from, open, text), to);
  }

 private:
  Graph& graph_;
  const MarkerTokens& tokens_;
};

/// Parameters as members: strings as they are, other values in JSON.
class Parameters final : public MemberWriter {
 public:
  Parameters(Graph& graph, JsonRules& json, CallMarkup& markup)
      : graph_(graph), json_(json), markup_(markup) {}
  void set_compiler(SchemaCompiler& compiler) { compiler_ = &compiler; }

  void add_separator(Vertex from, Vertex to) override { graph_.byte(from, '\n', to); }

  Status add_member(Vertex from, const std::string& name, const Json& schema,
                    const std::string& pointer, Vertex to) override {
    if (name.empty() || name.find_first_of("\"<>\n\r") != std::string::npos) {
      return schema_error("properties", pointer, "has a name that call markup cannot hold");
    }
    const Vertex value = markup_.add_tag(from, "<", " parameter name=\"" + name + "\" string=\"");
    return add_value(value, &schema, pointer, to);
  }

  Status add_other_member(Vertex from, const std::vector<std::string>& taken, const Json* schema,
                          const std::string& pointer, Vertex to) override {
    const Vertex name = markup_.add_tag(from, "<", " parameter name=\"");
    const Vertex close = graph_.add_vertex(), value = graph_.add_vertex();
    add_other_name(graph_, name, Spelling::raw, taken, close);
    graph_.literal(close, "\" string=\"", value);
    return add_value(value, schema, pointer, to);
  }

 private:
  Status add_value(Vertex from, const Json* schema, const std::string& pointer, Vertex to) {
    const Vertex text = graph_.add_vertex(), other = graph_.add_vertex();
    const Vertex end = graph_.add_vertex();
    graph_.literal(from, "true\">", text);
    graph_.literal(from, "false\">", other);
    markup_.add_tag(end, "</", " parameter>", to);
    if (schema == nullptr) {
      add_text(graph_, text, Spelling::raw, 0, kUnbounded, end);
      json_.add_all_but_strings(other, end);
      return {};
    }
    CEDAR_CHECK_OK(compiler_->add_value(*schema, pointer, Part::strings, text, end));
    return compiler_->add_value(*schema, pointer, Part::all_but_strings, other, end);
  }

  Graph& graph_;
  JsonRules& json_;
  CallMarkup& markup_;
  SchemaCompiler* compiler_ = nullptr;
};

class OutputCompiler {
 public:
  OutputCompiler(Graph& graph, const OutputRules& rules, const MarkerTokens& tokens)
      : graph_(graph), rules_(rules), tokens_(tokens), json_(graph), markup_(graph, tokens) {}

  Status compile() {
    const Rule all = graph_.add_rule();
    end_ = graph_.end_of(all);
    Vertex answer = graph_.start_of(all);
    if (rules_.starts_in_reasoning) {
      const Vertex after = graph_.add_vertex();
      graph_.bytes(answer, 0x00, 0xFF, answer);
      add_marker(graph_, answer, kEndOfReasoning, tokens_.end_of_reasoning, after);
      answer = after;
    }
    if (rules_.calls == CallChoice::required) return add_calls_with_blank_line(answer);
    if (rules_.answer == AnswerKind::text) return add_free_text(answer);
    CEDAR_CHECK_OK(add_json(answer));
    return rules_.calls == CallChoice::allowed ? add_calls_with_blank_line(answer) : Status();
  }

 private:
  /// A call may follow any "<" of the text.
  Status add_free_text(Vertex from) {
    const Vertex text = graph_.add_vertex();
    graph_.jump(from, text);
    graph_.bytes(text, 0x00, 0xFF, text);
    graph_.jump(text, end_);
    return rules_.calls == CallChoice::allowed ? add_calls(text) : Status();
  }

  Status add_json(Vertex from) {
    if (rules_.answer == AnswerKind::json_object) {
      json_.add_object(from, end_);
      return {};
    }
    CEDAR_TRY(const Json schema, read_schema(rules_.schema));
    SchemaCompiler compiler(graph_, json_, schema, rules_.closed_objects);
    return compiler.add_root(from, end_);
  }

  Status add_calls_with_blank_line(Vertex from) {
    const Vertex block = graph_.add_vertex();
    graph_.literal(from, "\n\n", block);
    return add_calls(block);
  }

  Status add_calls(Vertex from) {
    if (rules_.tools.empty()) {
      return make_error(Errc::invalid_argument, "calls are wanted and there are no tools");
    }
    const Vertex invoke = markup_.add_tag(from, "<", " calls>\n");
    const Vertex after = graph_.add_vertex(), close = graph_.add_vertex();
    for (const ToolRules& tool : rules_.tools) CEDAR_CHECK_OK(add_invoke(tool, invoke, after));
    graph_.byte(after, '\n', close);
    if (rules_.parallel_calls) graph_.byte(after, '\n', invoke);
    markup_.add_tag(close, "</", " calls>", end_);
    return {};
  }

  Status add_invoke(const ToolRules& tool, Vertex from, Vertex to) {
    if (tool.name.empty() || tool.name.find_first_of("\"<>\n\r") != std::string::npos ||
        ends_the_answer(tool.name)) {
      return make_error(Errc::unsupported, "the tool's name cannot stand in call markup");
    }
    const Vertex first = markup_.add_tag(from, "<", " invoke name=\"" + tool.name + "\">\n");
    const Vertex last = graph_.add_vertex();
    Parameters parameters(graph_, json_, markup_);
    if (tool.parameters.empty()) {
      CEDAR_CHECK_OK(add_any_parameters(parameters, first, last));
    } else {
      CEDAR_TRY(const Json schema, read_schema(tool.parameters));
      SchemaCompiler compiler(graph_, json_, schema, true);
      parameters.set_compiler(compiler);
      CEDAR_CHECK_OK(compiler.add_root_members(parameters, first, last));
    }
    markup_.add_tag(last, "\n</", " invoke>", to);
    return {};
  }

  Status add_any_parameters(Parameters& parameters, Vertex from, Vertex to) {
    const Vertex first = graph_.add_vertex(), next = graph_.add_vertex();
    graph_.jump(from, to);
    graph_.jump(from, first);
    CEDAR_CHECK_OK(parameters.add_other_member(first, {}, nullptr, "#", next));
    parameters.add_separator(next, first);
    graph_.jump(next, to);
    return {};
  }

  Graph& graph_;
  const OutputRules& rules_;
  const MarkerTokens& tokens_;
  JsonRules json_;
  CallMarkup markup_;
  Vertex end_ = 0;
};

}  // namespace

Result<Graph> compile_output(const OutputRules& rules, const MarkerTokens& tokens) {
  Graph graph;
  CEDAR_CHECK_OK(OutputCompiler(graph, rules, tokens).compile());
  CEDAR_CHECK_OK(graph.finish());
  return graph;
}

}  // namespace cedar::engine::structured
