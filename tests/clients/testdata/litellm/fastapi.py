class HTTPException(Exception):
    """Stands in for FastAPI's class of this name."""

    def __init__(self, status_code, detail=None):
        super().__init__(detail)
        self.status_code, self.detail = status_code, detail
