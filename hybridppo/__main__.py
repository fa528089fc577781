"""`python -m hybridppo`."""

from hybridppo.cli import main

if __name__ == "__main__":
    main()
