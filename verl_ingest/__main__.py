"""Run the command line as `python -m verl_ingest`."""

from verl_ingest.cli import main

main()
