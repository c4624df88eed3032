#!/usr/bin/env python3
"""Write Grafana's dashboards, monitoring/dashboards/*.json, from the panels below.

    tools/make_dashboards.py [--check]

--check writes nothing; exit status 1 if a file is not what would be written. In a query
`$__rate_interval` is Grafana's: at least four scrapes, more when the picture is wide.
"""
import json
import os
import sys

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "monitoring", "dashboards")
SOURCE = {"type": "prometheus", "uid": "prometheus"}
COLUMNS, WIDTH, HEIGHT = 3, 8, 8  # Grafana's grid has 24 columns


def rate(name, by="", labels=""):
    summed = f"sum by ({by})" if by else "sum"
    return f"{summed} (rate({name}{{{labels}}}[$__rate_interval]))" if labels else f"{summed} (rate({name}[$__rate_interval]))"


def share(part, whole):
    """0 where nothing happens, not nothing."""
    return f"{part} / ({whole} > 0) or 0 * {whole}"


def quantiles(name, by=""):
    labels = f"le, {by}" if by else "le"
    legend = f"p%d {{{{{by}}}}}" if by else "p%d"
    return [(f"histogram_quantile({q}, sum by ({labels}) (rate({name}_bucket[$__rate_interval])))", legend % round(100 * q))
            for q in ((0.5, 0.95, 0.99) if not by else (0.95,))]


def mean(name, by=""):
    return f"{rate(name + '_sum', by)} / {rate(name + '_count', by)}"


# title, unit, what it shows and what to make of it, (query, legend) ...
OVERVIEW = [
    ("Answers by how they ended", "reqps", "incomplete: cut by max_tokens, or the context's end.",
     (rate("cedar_gateway_responses_total", "outcome"), "{{outcome}}")),
    ("Requests", "short", "Those that wait have no room yet: see the balance of encoders and decoders.",
     ("sum(cedar_actors_running_requests)", "running"), ("sum(cedar_actors_queued_requests)", "waiting")),
    ("Ready", "short", "0: an encoder or a decoder is missing, or requests wait and none is let in.",
     ('cedar_ready{job="cedar-gateway"}', "{{instance}}")),
    ("Time to first token", "s", "From a request's acceptance. The objective is 5 s.",
     *quantiles("cedar_gateway_time_to_first_token_seconds")),
    ("Between two tokens", "s", "Of one answer. The objective is 250 ms.", *quantiles("cedar_gateway_inter_token_seconds")),
    ("Whole answers", "s", "From a request's acceptance to the end of its answer.", *quantiles("cedar_gateway_response_seconds")),
    ("Tokens", "short", "A second. Those of prompts include what came from a cache.",
     (rate("cedar_gateway_prompt_tokens_total"), "read"), (rate("cedar_gateway_completion_tokens_total"), "written")),
    ("Where a request's time goes", "s", "Mean seconds in each phase.",
     (mean("cedar_actors_phase_seconds", "phase"), "{{phase}}")),
    ("Prompt tokens from a cache", "percentunit", "The share that nobody had to read again.",
     (share(rate("cedar_gateway_cached_prompt_tokens_total"), rate("cedar_gateway_prompt_tokens_total")), "cached")),
    ("Nodes that the gateways give work to", "short", "",
     ("max by (role) (cedar_cluster_nodes)", "{{role}}")),
    ("Processor time", "short", "Cores in use, by role.",
     ('sum by (job) (rate(process_cpu_seconds_total{job=~"cedar-.*"}[$__rate_interval]))', "{{job}}")),
    ("Resident memory", "bytes", "",
     ('sum by (job) (process_resident_memory_bytes{job=~"cedar-.*"})', "{{job}}")),
]

BALANCE = [
    ("Tokens read for one written", "short", "154 is what agents do; more: encoders are what is needed, less: decoders.",
     (f"{rate('cedar_gateway_prompt_tokens_total')} / {rate('cedar_gateway_completion_tokens_total')}", "read : written"),
     ("vector(154)", "agents")),
    ("Busy encoders and decoders", "short", "Seconds of work a second. Close to the number of nodes: they are the bottleneck.",
     (rate("cedar_encoder_chunk_seconds_sum"), "encoders"), (rate("cedar_decoder_step_seconds_sum"), "decoders")),
    ("Tokens that wait to be read", "short", "KEDA scales encoders by their sum.",
     ("sum by (instance) (cedar_encoder_queued_tokens)", "{{instance}}")),
    ("How busy each encoder is", "percentunit", "Share of the time in which it computes a chunk.",
     (rate("cedar_encoder_chunk_seconds_sum", "instance"), "{{instance}}")),
    ("How busy each decoder is", "percentunit", "Share of the time in which it computes a batch.",
     (rate("cedar_decoder_step_seconds_sum", "instance"), "{{instance}}")),
    ("Work per busy second", "short", "Rows that a busy encoder reads, and tokens that a busy decoder writes, in a second.",
     (f"{rate('cedar_encoder_rows_total')} / {rate('cedar_encoder_chunk_seconds_sum')}", "read"),
     (f"{rate('cedar_decoder_tokens_total')} / {rate('cedar_decoder_step_seconds_sum')}", "written")),
    ("Rows of a chunk", "short", "Mean. Few: prompts are short or come one at a time.",
     (mean("cedar_encoder_chunk_rows", "instance"), "{{instance}}")),
    ("Rows of a batch", "short", "Mean. A decoder's time a batch hardly depends on it, so that more are cheaper a token.",
     (mean("cedar_decoder_step_rows", "instance"), "{{instance}}")),
    ("Time of a chunk, of a batch", "s", "95th percentile.",
     ("histogram_quantile(0.95, sum by (le) (rate(cedar_encoder_chunk_seconds_bucket[$__rate_interval])))", "chunk"),
     ("histogram_quantile(0.95, sum by (le) (rate(cedar_decoder_step_seconds_bucket[$__rate_interval])))", "batch")),
    ("Prompts, sequences", "short", "Being read, being written.",
     ("sum(cedar_encoder_requests)", "prompts"), ("sum(cedar_decoder_sequences)", "sequences")),
    ("Waiting for room", "s", "95th percentile of the time in the gateway's queue.",
     ('histogram_quantile(0.95, sum by (le) (rate(cedar_actors_phase_seconds_bucket{phase="queue"}[$__rate_interval])))',
      "queue")),
    ("Delay in mailboxes", "s", "How long messages wait for a stage behind others, besides the step that is under way; mean.",
     (mean("cedar_encoder_mailbox_seconds"), "encoders"), (mean("cedar_decoder_mailbox_seconds"), "decoders")),
]

KV = [
    ("KV blocks in use, decoders", "percentunit", "Requests wait when there are none for their longest answer.",
     ("1 - cedar_decoder_free_kv_blocks / cedar_decoder_kv_blocks", "{{instance}}")),
    ("KV blocks in use, encoders", "percentunit", "",
     ("1 - cedar_encoder_free_kv_blocks / cedar_encoder_kv_blocks", "{{instance}}")),
    ("Blocks that were found", "short", "A second, by where they were.",
     (rate("cedar_cache_hit_blocks_total", "tier"), "{{tier}}")),
    ("Prompts' beginnings", "percentunit", "Of the questions for a prompt's beginning, what came of them.",
     (f"{rate('cedar_actors_cache_questions_total', 'result')} / scalar({rate('cedar_actors_cache_questions_total')} > 0) "
      f"or 0 * {rate('cedar_actors_cache_questions_total', 'result')}", "{{result}}")),
    ("How windows came behind cached blocks", "short", "A second. windows: kept from the turn before, nothing is computed again.",
     (rate("cedar_gateway_prefix_resumes_total", "kind"), "{{kind}}")),
    ("Computed again behind a cache", "percentunit", "Of all prompt tokens, those that were cached and computed for windows.",
     (share(rate("cedar_gateway_replayed_prompt_tokens_total"), rate("cedar_gateway_prompt_tokens_total")), "replayed")),
    ("Memory of caches", "bytes", "", ("sum(cedar_cache_bytes)", "blocks"), ("sum(cedar_cache_capacity_bytes)", "room"),
     ("sum(cedar_cache_window_bytes)", "windows"), ("sum(cedar_cache_window_capacity_bytes)", "room for windows")),
    ("Blocks in and out", "short", "A second. Evicted more than found: the cache is too small.",
     (rate("cedar_cache_stored_blocks_total"), "stored"), (rate("cedar_cache_evicted_blocks_total"), "evicted"),
     (rate("cedar_cache_dropped_blocks_total"), "not kept")),
    ("Disks of caches", "bytes", "", ("sum(cedar_cache_disk_bytes)", "blocks"), ("sum(cedar_cache_disk_capacity_bytes)", "room")),
    ("Blocks to disk", "short", "A second. Dropped: the disk is behind. Errors: damaged blocks and failed reads and writes.",
     (rate("cedar_cache_disk_written_blocks_total"), "written"), (rate("cedar_cache_disk_dropped_blocks_total"), "dropped"),
     (rate("cedar_cache_disk_errors_total"), "errors")),
    ("Bytes that travel", "Bps", "Fetched by stages and caches.", (rate("cedar_transfer_bytes_total", "kind"), "{{kind}}")),
    ("Time of a fetch", "s", "95th percentile.", *quantiles("cedar_transfer_seconds", "kind")),
]

ENGRAM = [
    ("Rows by how stages came by them", "short", "A second. late and missed are what a step waits for.",
     (rate("cedar_engram_rows_total", "found"), "{{found}}")),
    ("Hot rows", "percentunit", "The share that the stages' own caches had (engine.engram_cache_mib).",
     (share(rate("cedar_engram_rows_total", labels='found="cache"'), rate("cedar_engram_rows_total")), "found in a cache")),
    ("Waited for rows", "percentunit", "Share of the stages' time.", (rate("cedar_engram_wait_seconds_total", "instance"), "{{instance}}")),
    ("Asked ahead", "short", "Rows a second, and those of them that nobody used.",
     (rate("cedar_engram_prefetched_rows_total"), "asked for"), (rate("cedar_engram_unused_rows_total"), "unused")),
    ("Questions to services", "short", "A second. After one that fails another replica is asked.",
     (rate("cedar_engram_calls_total", "result"), "{{result}}")),
    ("Steps without their rows", "short", "A second: their requests fail.", (rate("cedar_engram_failed_fetches_total"), "failed")),
    ("Rows handed out", "short", "A second, by service.", (rate("cedar_engram_service_rows_total", "instance"), "{{instance}}")),
    ("Time of a service's answer", "s", "", *quantiles("cedar_engram_service_seconds")),
    ("Index keys at indexers", "bytes", "", ("sum(cedar_indexer_bytes)", "kept"), ("sum(cedar_indexer_capacity_bytes)", "room")),
    ("Scans with indexers", "short", "A second: of stages, and the questions that indexers answered.",
     (rate("cedar_index_scans_total"), "scans"), (rate("cedar_indexer_scans_total"), "answers")),
    ("Questions to indexers", "short", "A second. What a failed one was about was scanned by the stage.",
     (rate("cedar_index_calls_total", "result"), "{{result}}")),
    ("Indexers that stages know", "short", "Failed ones are not asked until the directory changes.",
     ("max(cedar_index_holders)", "known"), ("max(cedar_index_failed_holders)", "failed")),
]

FAILURES = [
    ("Alerts that fire", "short", "docs/operations.md says what to do about each.",
     ('sum by (alertname) (ALERTS{alertstate="firing"}) or vector(0)', "{{alertname}}")),
    ("Processes that answer", "short", "", ('sum by (job) (up{job=~"cedar-.*"})', "{{job}}")),
    ("Starts in the last ten minutes", "short", "Of processes. A restarted node comes back with a higher generation.",
     ('sum by (job) (changes(process_start_time_seconds{job=~"cedar-.*"}[10m]))', "{{job}}")),
    ("Answers that failed", "short", "Requests a second that had begun, the commonest reasons.",
     (f"topk(4, {rate('cedar_actors_failures_total', 'reason')})", "{{reason}}")),
    ("Requests that were refused", "short", "A second, before any stage worked for them, the commonest reasons.",
     (f"topk(4, {rate('cedar_actors_rejections_total', 'reason')})", "{{reason}}")),
    ("Requests that clients cancelled", "short", "A second, by where they were.",
     (rate("cedar_actors_cancellations_total", "phase"), "{{phase}}")),
    ("Stages that requests had to replace", "short", "A second. They go on elsewhere.",
     (rate("cedar_actors_stage_replacements_total", "stage"), "{{stage}}")),
    ("Steps that failed", "short", "A second.", (rate("cedar_encoder_step_failures_total"), "encoders"),
     (rate("cedar_decoder_step_failures_total"), "decoders")),
    ("Nobody is let in", "s", "How long requests have waited while none got room.",
     ("max(cedar_actors_queue_stalled_seconds)", "stalled")),
    ("Lost peers, broken fetches", "short", "A second.", (rate("cedar_transport_peers_lost_total"), "peers lost"),
     (rate("cedar_transport_pulls_total", labels='status!="ok"'), "fetches that failed"),
     (rate("cedar_transport_leases_ended_total", labels='how!="released"'), "offers not taken")),
    ("Refused", "short", "A second: nodes at a gateway's door, peers of the data plane, requests for bytes.",
     (rate("cedar_cluster_refused_nodes_total"), "nodes"), (rate("cedar_transport_refused_handshakes_total"), "peers"),
     (rate("cedar_transport_refused_requests_total"), "requests for bytes")),
    ("Earlier lives, nonsense", "short", "Messages a second from a node's earlier life, and such that could not be parsed.",
     (rate("cedar_transport_stale_generations_total"), "earlier life"), (rate("cedar_transport_bad_messages_total"), "not parsed"),
     (rate("cedar_gateway_slow_readers_total"), "clients that did not read")),
]

DASHBOARDS = {
    "overview": ("Cedar: overview", OVERVIEW),
    "balance": ("Cedar: encoders and decoders", BALANCE),
    "kv": ("Cedar: KV and cache", KV),
    "engram": ("Cedar: Engram and indexers", ENGRAM),
    "failures": ("Cedar: failures", FAILURES),
}


def panel(number, title, unit, description, *queries):
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": number % COLUMNS * WIDTH, "y": number // COLUMNS * HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10, "showPoints": "never"}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [{"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
                    for i, (expr, legend) in enumerate(queries)],
    }


def dashboard(name):
    title, panels = DASHBOARDS[name]
    return {
        "uid": "cedar-" + name,
        "title": title,
        "tags": ["cedar"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": []},
        "annotations": {"list": []},
        "links": [{"type": "dashboards", "title": "Cedar", "tags": ["cedar"], "asDropdown": False, "includeVars": False,
                   "keepTime": True}],
        "panels": [panel(i, *p) for i, p in enumerate(panels)],
    }


def main():
    stale = []
    os.makedirs(FOLDER, exist_ok=True)
    for name in DASHBOARDS:
        path = os.path.join(FOLDER, name + ".json")
        text = json.dumps(dashboard(name), indent=2) + "\n"
        if sys.argv[1:] == ["--check"]:
            try:
                with open(path, encoding="utf-8") as f:
                    old = f.read()
            except OSError:
                old = None
            if old != text:
                stale.append(path)
            continue
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    for path in stale:
        print(f"{path}: not what tools/make_dashboards.py writes")
    sys.exit(1 if stale else 0)


if __name__ == "__main__":
    main()
