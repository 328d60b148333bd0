"""What crosses the network, and how: messages, arrays in files, transports."""
