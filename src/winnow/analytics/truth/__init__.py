"""Truth discovery: what is true of items that participants answered, and whom of them to trust."""
