#pragma once
// What this process takes of its machine, as Prometheus names it (process_*).

namespace cedar::monitoring {

class Metrics;

/// Reads /proc; what cannot be read stays as it was.
void report_process(Metrics& metrics);

}  // namespace cedar::monitoring
