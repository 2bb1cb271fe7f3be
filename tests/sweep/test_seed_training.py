"""One training of a sweep, without Ray: what the user can fix fails that training, and not the sweep."""

from unittest.mock import MagicMock

from raycomp.config import TooMuchBadData, UserError
from raycomp.sweep.config import SweepConfig
from raycomp.sweep.plan import make_plan
from raycomp.sweep.trials import DEVELOPMENT, FAILED, Job, SeedTraining, run_seed_training
from tests.sweep.runs import SCORED


def test_a_training_that_is_refused_fails_alone(tmp_path):
    plan = make_plan(SweepConfig(space="train.learning_rate=grid(0.1,0.4,0.3)"), SCORED)
    refused = [UserError("loss: must be finite"), TooMuchBadData("input: 95.0% of 60 rows cannot be used")]
    for number, error in enumerate(refused):
        refuse = MagicMock(side_effect=error)
        job = Job(plan, str(tmp_path), str(tmp_path / "work"), (), refuse)
        outcome = run_seed_training(job, "000", {}, SeedTraining(DEVELOPMENT, number))
        assert (outcome.status, outcome.why) == (FAILED, str(error))
