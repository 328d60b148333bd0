"""Federated learning that works out, without seeing the data, whose data is worth learning from."""
