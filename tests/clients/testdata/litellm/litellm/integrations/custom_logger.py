class CustomLogger:
    """Stands in for LiteLLM's class of this name."""

    async def async_log_failure_event(self, kwargs, response_obj, start_time, end_time):
        pass
