"""What the demo says and does beside the commands it runs; the demo itself is run by `make demo`."""

import json
from pathlib import Path

from verl_ingest.demo import logs


def test_the_sample_is_the_same_each_time_and_holds_its_faults(tmp_path: Path) -> None:
    logs.write(tmp_path / "a", steps=140)
    logs.write(tmp_path / "b", steps=140)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(names) == 35
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)
    lines = [json.loads(line) for line in (tmp_path / "a" / "verl_reward_rank3.jsonl").open()]
    kl = {line["step"]: line["value"] for line in lines if line["metric_name"] == "kl_divergence"}
    assert kl[128] > 4 * max(value for step, value in kl.items() if step != 128)
