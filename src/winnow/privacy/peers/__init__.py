"""Averaging among peers: updates go between sites as sealed messages, each site averages for itself."""

from winnow.privacy.peers.peers_collect import PeersCollect

__all__ = ["PeersCollect"]
