"""What middleware.py, llmproxy.py and litellm_budget.py share. It needs Python 3.8 and nothing else."""
import http.client
import queue
import urllib.parse


class Server:
    """Keeps its connections open, so that requests share them."""

    def __init__(self, url, timeout):
        parts = urllib.parse.urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.connect = lambda: kind(parts.hostname or "", parts.port, timeout=timeout)
        self.path, self.idle = parts.path.rstrip("/"), queue.LifoQueue()

    def post(self, path, body, headers):
        """Returns status, headers and body. A connection that the other side has closed meanwhile is replaced, and
        the request repeated. If the server ended in between, a take without an id may count twice."""
        while True:
            try:
                connection, used = self.idle.get_nowait(), True
            except queue.Empty:
                connection, used = self.connect(), False
            try:
                connection.request("POST", self.path + path, body, headers)
                answer = connection.getresponse()
                result = answer.status, answer.headers, answer.read()
            except (http.client.HTTPException, OSError) as error:
                connection.close()
                if used and isinstance(error, ConnectionError):
                    continue
                raise
            self.idle.put(connection)
            return result
