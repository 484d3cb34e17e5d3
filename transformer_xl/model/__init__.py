"""The model as pure functions of parameters and memory."""
