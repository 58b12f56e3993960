"""One file a command: parse, call one function, print. Heavy imports wait for the call."""
