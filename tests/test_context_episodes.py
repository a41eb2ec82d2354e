"""Episodes from signs, without a store: the context of a step is a stand-in that says which findings it has."""

from verl_ingest.catalog import metrics
from verl_ingest.context import episodes
from verl_ingest.context.findings import Finding
from verl_ingest.context.onset import Signs
from verl_ingest.context.step import StepContext

CATALOGUE = metrics.load()


def signs(*bad: str, apart=(), troubled=False, uneven=False) -> Signs:
    return Signs(dict.fromkeys(bad, 5.0), dict.fromkeys(apart, 20.0), troubled, uneven)


def find(of_steps: dict[int, Signs], findings: dict[int, list[Finding]]) -> list[episodes.Episode]:
    def assemble(step: int) -> StepContext:
        return StepContext(
            {"time": {"first": None}, "errors": [], "missing_ranks": {"actor": [7]}}, tuple(findings.get(step, ()))
        )

    return episodes.find(of_steps, assemble, CATALOGUE, most=24)


KL = Finding("KL is high.", metrics=("kl_divergence",))
LOSS = Finding("Loss is high.", metrics=("my_loss",))
ERROR = Finding("First error.", trouble="gpu_out_of_memory")
MISSING = Finding("Rank 7 is missing.", trouble="missing_rank")


def spans(found: list[episodes.Episode]) -> list[list[tuple[int, int, int, str]]]:
    return [[(e.first, e.last, e.steps, e.finding.sentence) for e in episode.events] for episode in found]


def test_an_episode_ends_after_ten_normal_steps():
    of_steps = {at: signs("kl_ref") for at in (10, 11, 20, 31)}
    assert spans(find(of_steps, {10: [KL], 31: [KL]})) == [[(10, 20, 3, "KL is high.")], [(31, 31, 1, "KL is high.")]]


def test_what_the_context_does_not_confirm_is_no_event():
    assert find({5: signs("kl_ref")}, {}) == []
    assert find({5: signs("kl_ref")}, {5: [LOSS]}) == []
    assert find({5: signs(apart=["kl_ref"])}, {5: [KL]})[0].first == 5


def test_an_event_may_begin_a_little_later_than_its_signs():
    of_steps = {at: signs("kl_ref") for at in range(10, 20)}
    assert spans(find(of_steps, {12: [KL]})) == [[(12, 19, 8, "KL is high.")]]


def test_an_error_and_the_metric_that_leaves_with_it_are_two_events():
    of_steps = {10: signs("kl_ref", troubled=True), **{at: signs("kl_ref") for at in range(11, 15)}}
    assert spans(find(of_steps, {10: [ERROR, KL]})) == [[(10, 14, 5, "KL is high."), (10, 10, 1, "First error.")]]


def test_a_silent_rank_is_told_by_uneven_steps_only():
    assert find({5: signs("kl_ref")}, {5: [MISSING]}) == []
    assert spans(find({5: signs(uneven=True)}, {5: [MISSING]})) == [[(5, 5, 1, "Rank 7 is missing.")]]


def test_the_cause_is_the_first_critical_event_that_lasts():
    of_steps = {8: signs("my_loss"), **{at: signs("kl_ref") for at in range(10, 20)}}
    [episode] = find(of_steps, {8: [LOSS], 10: [KL]})
    assert (episode.first, episode.cause(CATALOGUE).finding) == (8, KL)
    [alone] = find({8: signs("my_loss")}, {8: [LOSS]})
    assert alone.cause(CATALOGUE).finding == LOSS


def test_the_golden_metric_of_a_step_is_told_first():
    [episode] = find({3: signs("kl_ref", "my_loss")}, {3: [LOSS, KL]})
    assert (episode.events[0].finding, episode.events[0].others) == (KL, (LOSS,))


def test_a_run_that_is_abnormal_everywhere_is_asked_about_few_steps():
    asked = []

    def assemble(step: int) -> StepContext:
        asked.append(step)
        return StepContext({"time": {"first": None}, "errors": [], "missing_ranks": {"actor": [7]}}, (KL,))

    episodes.find({at: signs("kl_ref", troubled=at % 3 == 0) for at in range(3_000)}, assemble, CATALOGUE, most=7)
    assert len(asked) == 7
