class CustomLogger:
    """Stands in for LiteLLM's class of this name."""
