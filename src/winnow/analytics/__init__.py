"""Questions about tables that several owners hold: what is asked is computed in shares, and only answers are opened."""
