"""What a run costs: planned before it starts, and added up from what it left behind."""
