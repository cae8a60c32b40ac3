"""What a run folder records: how the run was started, and what is done, so that it can be continued and replayed."""
