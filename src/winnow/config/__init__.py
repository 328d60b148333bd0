"""What a configuration is: its schema, how presets, files and options become one, and what can be wrong with it."""
