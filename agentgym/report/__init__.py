"""Pages that show what a run did: the trace viewer and the report of a training run."""
