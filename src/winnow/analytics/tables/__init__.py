"""Tables that several owners hold: what is declared of them, and one owner's rows."""
