"""What notebooks show below a cell: cards in HTML that load nothing, and pictures where no scripts run."""
