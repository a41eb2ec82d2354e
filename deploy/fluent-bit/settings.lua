-- Rendered from settings.yml; edit that.
return {
  run_paths = { "/data/runs/{run}/logs/*rank*.jsonl*", "/data/runs/{run}/logs/metrics*.jsonl*", "/data/runs/{run}/logs/*.log*", "/data/runs/{run}/rollout/[0-9]*.jsonl", "/data/runs/{run}/val/[0-9]*.jsonl" },
  line_bytes = 8388608,
  samples = {
    text_per_step = 32,
  },
  drop = {  },
}
