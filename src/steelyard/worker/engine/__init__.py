"""The engine: runs the phases of a run and its blocks of steps on all ranks until the budget is used up."""
