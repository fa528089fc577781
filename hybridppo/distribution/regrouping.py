"""A learner that is lost: whether others take its place, and from where all of them go on."""

import logging
from dataclasses import replace

from hybridppo.errors import LearnerLostError
from hybridppo.runners.workers.losses import LOSSES_IN_A_ROW
from hybridppo.runs.job import Job
from hybridppo.runs.loading import fitting, rewind_to, tensors_of_agent

logger = logging.getLogger(__name__)


class Losses:
    """Counts the losses of a training, as far as no checkpoint lies between them."""

    def __init__(self) -> None:
        self._in_a_row, self._at = 0, -1

    def next(self, job: Job, lost: LearnerLostError, *, may: bool) -> Job:
        """The training as of its last checkpoint, agent included: what came after is given up, and done again.

        Args:
            job: of the training.
            lost: what happened.
            may: whether learners can be started from here at all.

        Raises:
            LearnerLostError: the same, where nobody asked for restarts, where there is no checkpoint to go on from, or
                where this has happened too often without another one between.
        """
        directory = job.directory
        if not (may and job.settings.environment.restarts) or directory is None or job.interruption.requested:
            raise lost
        if directory.is_untouched:
            raise lost
        checkpoint = directory.load_checkpoint(to_go_on=True)
        steps = rewind_to(directory, checkpoint)
        with fitting("this run"):  # it may have been lost in the midst of an update, which has changed the agent
            job.agent.load_state(tensors_of_agent(checkpoint), checkpoint.state["agent"])
        self._in_a_row = self._in_a_row + 1 if steps == self._at else 1
        self._at = steps
        if self._in_a_row > LOSSES_IN_A_ROW:
            raise LearnerLostError(f"{self._in_a_row} times in a row without a checkpoint between: {lost}") from lost
        logger.warning(
            "%s\nOthers are started in place of all but the first, and go on from the checkpoint of %s steps.",
            lost, f"{steps:,}",
        )  # fmt: skip
        return replace(job, checkpoint=checkpoint)
