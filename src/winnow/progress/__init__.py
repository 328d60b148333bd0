"""What a person sees while a run is under way: live progress, tables, where the time goes."""
