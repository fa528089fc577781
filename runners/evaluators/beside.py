"""Evaluation beside the training, in a process that runs episodes with the NumPy form of the actor."""

from hybridppo.environments.making import to_send
from hybridppo.errors import EnvError
from hybridppo.interfaces import SamplingActor
from hybridppo.networks.numpy_forms.actor import ArrayActor
from hybridppo.networks.numpy_forms.form import NumpyForm, PoliciesForm
from hybridppo.runners.evaluation import Episodes, Evaluation
from hybridppo.runners.processes import LocalProcesses
from hybridppo.system.signals import Stopped


class Beside:
    """Runs episodes in another process, which does not load torch.

    Args:
        episodes: the episodes of an evaluation.
        form: the NumPy form of the actor.

    Raises:
        EnvError: if the process fails, dies or hangs; raised when an evaluation begins or its result is needed.
    """

    is_beside = True

    def __init__(self, episodes: Episodes, form: NumpyForm | PoliciesForm) -> None:
        self._is_ready = self._is_running = False
        self._pool = LocalProcesses(
            "hybridppo.runners.evaluators.process",
            "evaluator",
            [slice(0, episodes.num_envs)],
            {**vars(episodes), "source": to_send(episodes.source), "form": form},
            episodes.options.worker_timeout,
            restarts=False,
            otherwise=", or evaluate in this process, with evaluate_beside=False",
        )
        self._stop = self._pool.arrays["stop"]
        try:
            self._pool.start(0, episodes.seed)  # it imports its modules while the training begins
        except BaseException:
            self.close()
            raise

    def begin(self, actor: SamplingActor) -> None:
        """Begin an evaluation of an actor that does not change."""
        # The form of such a network on the CPU.
        assert isinstance(actor, ArrayActor)
        if not self._is_ready:
            try:
                self._pool.wait_until_ready([0])
            except Stopped:  # `result` raises the error
                return
            self._is_ready = True
        self._pool.ask(0, "evaluate", list(actor.parameters))
        self._is_running = True

    def result(self) -> Evaluation:
        """Wait for the result, once.

        Raises:
            Stopped: if a stop was requested before the end.
        """
        if not self._is_running:
            raise Stopped
        self._is_running = False
        ((_, answer),) = self._pool.answers([0])
        if isinstance(answer, EnvError):
            raise answer
        if answer[0] is None:
            raise Stopped
        evaluation: Evaluation = answer[0]
        return evaluation

    def request_stop(self) -> None:
        """Stop before the next step. It may be called in a signal handler."""
        self._stop[0] = 1

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self.request_stop()
        self._pool.close()
