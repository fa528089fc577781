"""What is asked for in a run: options, settings, the job."""
