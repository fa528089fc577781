"""Which placement to take, from predictions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hybridppo.auto.figures import Figures, Work
from hybridppo.auto.prediction import Prediction, predict_with
from hybridppo.system.figures import shown_seconds

MARGIN = 0.03
"""A candidate must be faster than a simpler one by this share, or the simpler one is taken."""
MARGIN_WHERE_ASSUMED = 0.10
"""The same where one of its figures was assumed instead of measured."""


@dataclass(frozen=True)
class Decision:
    """What to take, and what could be gained by allowing more."""

    chosen: Prediction
    baseline: Prediction
    """The simplest: the first prediction."""
    with_lag: Prediction | None
    """The fastest that overlaps, where that would gain and is not allowed."""
    with_threads: Prediction | None
    """The fastest with another number of threads, where that would gain and is not allowed."""
    with_form: tuple[str, Prediction] | None = None
    """What to set for the fastest with another form of the update, where that would gain, and what it gives."""


def decide(predictions: Sequence[Prediction], work: Work, *, max_lag: int, torch_threads: int | None) -> Decision:
    """The fastest candidate that is allowed, over the whole run; simpler ones win within a margin.

    Args:
        predictions: the simplest first.
        work: for the number of iterations.
        max_lag: 0 allows no overlap, 1 does.
        torch_threads: the only number of threads allowed; None allows any.
    """

    def fastest(allowed: Iterable[Prediction]) -> Prediction | None:
        return min(allowed, key=lambda prediction: _handicapped(prediction, predictions[0], work), default=None)

    def keeps_threads(prediction: Prediction) -> bool:
        return torch_threads is None or prediction.candidate.torch_threads == torch_threads

    def keeps_lag(prediction: Prediction) -> bool:
        return prediction.candidate.max_lag <= max_lag

    allowed = [prediction for prediction in predictions if keeps_threads(prediction) and keeps_lag(prediction)]
    chosen = fastest(allowed)
    assert chosen is not None  # there is always the CPU alone, with the threads configured
    baseline = allowed[0]

    def if_gains(other: Prediction | None) -> Prediction | None:
        gains = other is not None and _handicapped(other, baseline, work) < (1 - MARGIN) * chosen.run(work.iterations)
        return other if gains else None

    with_lag = fastest(p for p in predictions if keeps_threads(p) and not keeps_lag(p))
    with_threads = fastest(p for p in predictions if keeps_lag(p) and not keeps_threads(p))
    return Decision(chosen, baseline, if_gains(with_lag), if_gains(with_threads))


def best_form(chosen: Prediction, work: Work, figures: Figures) -> tuple[str, Prediction] | None:
    """Which other form of the update would gain the most over what was chosen, if one does; no stopwatch may take it.

    Its bits are others, and those of another number of threads again.
    """
    if chosen.candidate.learning != "cpu":
        return None
    found = {
        label: predict_with(form, work, figures, chosen.candidate)
        for label, form in figures.forms.items()
        if chosen.candidate.max_lag == 0 or chosen.candidate.num_workers + form.threads <= work.cores
    }
    label = min(found, key=lambda each: found[each].run(work.iterations), default=None)
    if label is None or found[label].run(work.iterations) >= (1 - MARGIN) * chosen.run(work.iterations):
        return None
    return label, found[label]


def _handicapped(prediction: Prediction, simplest: Prediction, work: Work) -> float:
    margin = 0.0 if prediction is simplest else MARGIN_WHERE_ASSUMED if prediction.is_assumed else MARGIN
    return prediction.run(work.iterations) * (1.0 + margin)


def describe(decision: Decision, work: Work, figures: Figures) -> str:
    """The decision in a line, with the figures behind it."""
    chosen, baseline = decision.chosen, decision.baseline
    times = {part: shown_seconds(getattr(chosen, part)) for part in ("iteration", "sampling", "learning", "copying")}
    parts = [
        f"{chosen.candidate.label}, {times['iteration']} an iteration "
        f"(sampling {times['sampling']}, learning {times['learning']}, copying {times['copying']})"
    ]
    if chosen is not baseline:
        parts.append(f"{baseline.candidate.label} {shown_seconds(baseline.iteration)}")
    parts.append(
        f"a step of {work.num_envs} environments takes {shown_seconds(figures.step[work.num_envs] - figures.action)}, "
        f"their actions {shown_seconds(figures.action)}"
    )
    if decision.with_lag is not None:
        better = decision.with_lag
        parts.append(f"{better.candidate.label} would take {shown_seconds(better.iteration)}: allow it with max_lag=1")
    if decision.with_threads is not None:
        better = decision.with_threads
        parts.append(f"{better.candidate.label} would take {shown_seconds(better.iteration)}: see torch_threads")
    if decision.with_form is not None:
        label, better = decision.with_form
        parts.append(f"with {label} it would take {shown_seconds(better.iteration)}, and a seed give other bits")
    return "; ".join(parts)
