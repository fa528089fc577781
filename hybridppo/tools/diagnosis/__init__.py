"""What shows whether this machine works and how fast it is: `doctor`, distributions side by side."""
