"""What shows whether this machine works and how fast it is: `doctor`, `acceptance`, distributions side by side."""
