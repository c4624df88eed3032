#pragma once
// JSON schemas to rules of a graph. Every schema of a document becomes one rule, so what is used twice or refers
// to itself costs nothing more. Members of objects come in the order in which the schema declares them.
//
// Errors of every function: unsupported, "KEYWORD at #/JSON/POINTER ...".

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/structured/json_rules.h"
#include "engine/structured/schema_keywords.h"
#include "engine/structured/string_rules.h"

namespace cedar::engine::structured {

/// How the members of an object are written: JSON here, call markup in output_compiler.cpp.
class MemberWriter {
 public:
  virtual ~MemberWriter() = default;
  /// Between two members.
  virtual void add_separator(Vertex from, Vertex to) = 0;
  virtual Status add_member(Vertex from, const std::string& name, const Json& schema,
                            const std::string& pointer, Vertex to) = 0;
  /// A member that the schema does not name. `schema` is null where any value will do.
  virtual Status add_other_member(Vertex from, const std::vector<std::string>& taken,
                                  const Json* schema, const std::string& pointer, Vertex to) = 0;
};

/// The parts of a value that a call parameter spells differently.
enum class Part : uint8_t {
  all,             // JSON
  strings,         // strings alone, in raw spelling and without quotes
  all_but_strings  // JSON
};

class SchemaCompiler {
 public:
  /// `root` must stay where it is until compile_pending() is done. `closed_objects`: objects that do not say
  /// have no members beside those declared.
  SchemaCompiler(Graph& graph, JsonRules& json, const Json& root, bool closed_objects)
      : graph_(graph), json_(json), root_(root), closed_objects_(closed_objects) {}

  /// The whole document.
  Status add_root(Vertex from, Vertex to);
  /// The members of the document's object without its braces.
  Status add_root_members(MemberWriter& writer, Vertex from, Vertex to);
  /// A value of one schema of the document.
  Status add_value(const Json& schema, const std::string& pointer, Part part, Vertex from,
                   Vertex to);
  /// A call of the schema's rule.
  void add_call(const Json& schema, const std::string& pointer, Vertex from, Vertex to);
  /// Rules that are called and not written yet, until there are none.
  Status compile_pending();

 private:
  struct Job {
    const Json* schema;
    std::string pointer;
    Rule rule;
  };
  struct Members;

  Status add_schema(const Json& schema, const std::string& pointer, Part part, Vertex from,
                    Vertex to);
  Status add_reference(const Json& schema, const std::string& pointer, Part part, Vertex from,
                       Vertex to);
  Status add_alternatives(const Json& schema, const std::string& pointer, const char* keyword,
                          Part part, Vertex from, Vertex to);
  Status add_constants(const Json& schema, const std::string& pointer, Part part, Vertex from,
                       Vertex to);
  Status add_types(const Json& schema, const std::string& pointer, Part part, Vertex from,
                   Vertex to);
  void add_anything(Part part, Vertex from, Vertex to);
  Status add_string(const Json& schema, const std::string& pointer, Spelling spelling, Vertex from,
                    Vertex to);
  Status add_numeric(const Json& schema, const std::string& pointer, bool whole, Vertex from,
                     Vertex to);
  Status add_array(const Json& schema, const std::string& pointer, Vertex from, Vertex to);
  Status add_object(const Json& schema, const std::string& pointer, Vertex from, Vertex to);
  Result<Members> read_members(const Json& schema, const std::string& pointer);
  /// `without` and `with`: the ends when no and when some member was written.
  Status add_members(const Json& schema, const std::string& pointer, MemberWriter& writer,
                     Vertex from, Vertex without, Vertex with);

  Graph& graph_;
  JsonRules& json_;
  const Json& root_;
  const bool closed_objects_;
  std::map<const Json*, Rule> rules_;
  std::deque<Job> pending_;
  // Schemas already written in place between the two vertices of the outermost add_value().
  std::set<const Json*> in_place_;
};

/// Text to a schema document. Errors: invalid_argument (not JSON), unsupported (larger than kMaxSchemaBytes).
Result<Json> read_schema(std::string_view text);

/// Text that a schema wants literally and that would end the answer (see forbidden_text.h).
bool ends_the_answer(std::string_view text);

}  // namespace cedar::engine::structured
