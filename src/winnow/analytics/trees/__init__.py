"""Boosted trees over rows of several owners, grown from sums of gradients."""
