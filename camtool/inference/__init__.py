"""Many forward passes in a row: memory budget, chunks, progress, and a copy with folded batch norms."""
