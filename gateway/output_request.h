#pragma once
// The fields of a chat request that constrain the output: tools, tool_choice, parallel_tool_calls and
// response_format (docs/structured_output.md).

#include "gateway/api_types.h"

namespace cedar::gateway {

/// Fills `tools`, `tool_choice`, `response_format` and `output` of the request. Schemas that will be enforced
/// are compiled here once, so that what is not supported is a complaint before anything is queued:
/// "response_format.json_schema.schema: KEYWORD at #/POINTER ...".
void read_output_fields(FieldReader& fields, ApiRequest& request);

}  // namespace cedar::gateway
