"""What the demo says and does beside the commands it runs; the demo itself is run by `make demo`."""

import json
from pathlib import Path

from verl_ingest.demo import logs
from verl_ingest.local import compose


def test_the_sample_is_the_same_each_time_and_holds_its_faults(tmp_path: Path) -> None:
    logs.write(tmp_path / "a", steps=140)
    logs.write(tmp_path / "b", steps=140)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(names) == 35
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)
    lines = [json.loads(line) for line in (tmp_path / "a" / "verl_reward_rank3.jsonl").open()]
    kl = {line["step"]: line["value"] for line in lines if line["metric_name"] == "kl_divergence"}
    assert kl[128] > 4 * max(value for step, value in kl.items() if step != 128)


def test_passwords_are_made_once_and_for_the_owner_alone(tmp_path: Path) -> None:
    (tmp_path / ".env.example").write_text("# A comment.\nSTACK_VERSION=8.19.21\nELASTIC_PASSWORD=\nKIBANA_PASSWORD=\n")
    path = compose.write_passwords(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    first = path.read_text()
    values = dict(line.split("=") for line in first.splitlines() if "=" in line)
    assert values["STACK_VERSION"] == "8.19.21"
    assert len(values["ELASTIC_PASSWORD"]) == 32
    assert values["ELASTIC_PASSWORD"] != values["KIBANA_PASSWORD"]
    assert compose.write_passwords(tmp_path).read_text() == first
