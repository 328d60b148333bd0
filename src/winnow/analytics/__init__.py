"""Questions about tables that several owners hold: statistics, fits, intersections."""
