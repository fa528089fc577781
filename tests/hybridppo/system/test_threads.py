"""The CPU threads of a training."""

from hybridppo.system.blas import libraries
from hybridppo.system.threads import one_blas_thread


def of_numpy() -> set[int]:
    return {each["num_threads"] for each in libraries().info() if each["user_api"] == "blas"}


def test_trainings_side_by_side_end_in_any_order() -> None:
    """Each is in its own thread; the number of NumPy's threads is the process's."""
    with libraries().limit(limits=2, user_api="blas"):
        before = of_numpy()
        one, other = one_blas_thread(), one_blas_thread()
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        assert of_numpy() <= {1}, "the other goes on with one thread"
        other.__exit__(None, None, None)
        assert of_numpy() == before
