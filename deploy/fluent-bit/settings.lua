-- Rendered from settings.yml; edit that.
return {
  run_paths = { "/data/runs/{run}/logs/*.jsonl", "/data/runs/{run}/logs/*.log", "/data/runs/{run}/rollout/*.jsonl", "/data/runs/{run}/val/*.jsonl" },
  line_bytes = 8388608,
  samples = {
    text_per_step = 32,
  },
  drop = {  },
}
