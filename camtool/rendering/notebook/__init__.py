"""Output of results in notebooks: cards in HTML that load nothing, and pictures where no scripts run."""
