return {
  run = "unnamed",
  run_paths = { "/data/runs/{run}/**" },
  line_bytes = 8388608,
  samples = { text_per_step = 32 },
}
