"""The command `hybridppo`, and `python -m hybridppo`."""

from hybridppo._lazy import importing_torch
from hybridppo.blas import choose_kernels


def main() -> None:
    """Run the command line; never returns."""
    choose_kernels()
    with importing_torch():
        from hybridppo.commands.main import main as run

    run()


if __name__ == "__main__":
    main()
