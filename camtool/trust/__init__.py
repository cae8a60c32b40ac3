"""Judge a map: warnings when it should not be trusted, and metrics."""
