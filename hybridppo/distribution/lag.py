"""How old the parameters of a gradient may be, in optimizer steps; and who waits so that none are older.

Source: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", 2014, bounded delay. There, as
here, whoever would go beyond the bound waits: nothing that was computed is thrown away, and nobody is overtaken for
ever.
"""


class BoundedLag:
    """Who computes a gradient, and by which version of the parameters.

    A version is an optimizer step. At most `max_lag + 1` learners compute at the same time, and one that has ended
    waits for those that began before it wherever its step would make theirs too old. The oldest never waits.

    Args:
        max_lag: how many steps of others may lie between the parameters of a gradient and its own step.
        version: of the parameters now.
    """

    def __init__(self, max_lag: int, version: int = 0) -> None:
        self.max_lag, self.version = max_lag, version
        self._computing: dict[int, int] = {}
        """The version by which each learner computes, in the order in which they began."""

    def may_begin(self) -> bool:
        """Whether another may begin: were all to end in the order in which they began, none would be too old."""
        return len(self._computing) <= self.max_lag

    def begin(self, learner: int) -> None:
        """It computes by the version that there is now."""
        self._computing[learner] = self.version

    def may_step(self, learner: int) -> bool:
        """Whether its step leaves room for all that began before it."""
        for place, (other, version) in enumerate(self._computing.items()):
            if other == learner:
                return True
            if self.version + 1 + place - version > self.max_lag:
                return False
        raise KeyError(learner)

    def step(self, learner: int) -> int:
        """Its step is made; its lag."""
        lag = self.version - self._computing.pop(learner)
        self.version += 1
        return lag

    def forget(self, learner: int) -> None:
        """It is lost, with its gradient, if it has begun one."""
        self._computing.pop(learner, None)
