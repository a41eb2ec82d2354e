"""Where a step stands in the story of its run."""

import pytest

from tests.pages import Page
from verl_ingest.context.checkpoints import Checkpoint
from verl_ingest.context.episodes import Episode, Event
from verl_ingest.context.findings import Finding
from verl_ingest.serve.page import addresses, episode, render

NAN = Finding("reward_mean of rank 5 is NaN.", metrics=("reward_mean",), rank=5, trouble="not_finite")
KL = Finding("KL 0.06 is 5 sigma above.", metrics=("kl_divergence",))
SLOW = Finding("Rank 6 is a straggler.", metrics=("actor/forward_latency_ms",), rank=6, trouble="straggler")
OTHER = Finding("entropy 1 is low.", metrics=("entropy",))
SAVED = Checkpoint(150, "/ckpt/it's/global_step_150", "2026-03-01T16:30:00Z")


def event(first: int, last: int, finding: Finding) -> Event:
    return Event(first, last, last - first + 1, finding, (), {"time": {"first": None}, "errors": []})


EPISODES = [Episode((event(137, 137, NAN),)), Episode((event(155, 240, KL), event(170, 180, SLOW)))]


@pytest.mark.parametrize(
    ("step", "finding", "began", "onset"),
    [
        (137, NAN, "", None),
        (155, KL, "It began at this step and goes on until step 240.", None),
        (200, KL, "It began at step 155.", 155),
        (172, SLOW, "It began at step 170.", 170),
        (200, OTHER, "Trouble began at step 155: KL 0.06 is 5 sigma above.", 155),
        (140, KL, "", None),
    ],
)
def test_when_it_began(step, finding, began, onset):
    place = episode.tell(EPISODES, SAVED, step, [finding])
    assert (place.began, place.onset) == (began, onset)


@pytest.mark.parametrize(
    ("step", "previous", "next_"), [(100, None, 137), (137, None, 155), (160, 155, 170), (240, 170, None)]
)
def test_anomalies_before_and_after(step, previous, next_):
    place = episode.tell(EPISODES, SAVED, step, [])
    assert (place.previous, place.next) == (previous, next_)


def test_the_checkpoint_is_that_of_the_last_episode_only():
    assert episode.tell(EPISODES, SAVED, 160, [KL]).checkpoint == "step 150, /ckpt/it's/global_step_150"
    assert episode.tell(EPISODES, SAVED, 137, [NAN]).checkpoint == ""
    assert episode.tell(EPISODES, None, 160, [KL]).checkpoint == ""
    assert episode.tell([], SAVED, 160, [KL]).resume == ""


def test_the_parts_name_where_they_go():
    place = episode.tell(EPISODES, SAVED, 172, [SLOW])
    page = Page(render.episode_html(place, addresses.of_step("/verl", "a/b", 172)))
    assert page.attributes("data-into") == ["began", "checkpoint", "anomalies"]
    assert {"/verl/runs/a~2Fb/steps/170", "/verl/runs/a~2Fb/steps/172/next-anomaly"} <= set(page.attributes("href"))
    assert "It began at step 170." in page.text
    assert "trainer.resume_from_path='/ckpt/it'\"'\"'s/global_step_150'" in page.text
    template = (render.TEMPLATES / "first_screen.html.j2").read_text()
    assert all(f'id="{name}"' in template for name in page.attributes("data-into"))
