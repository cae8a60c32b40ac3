"""Progress of long work: signs of life on standard error, and a line for each photo."""
