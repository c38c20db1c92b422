#!/usr/bin/env python3
"""A WSGI service that runs only if a limit of Tallyroll allows the request: copy TakeFirst, and
tallyroll.py beside it.

    TALLYROLL_URL=http://127.0.0.1:8080 LIMIT=login examples/python/middleware.py
    curl -i -H 'X-Api-Key: alice' http://127.0.0.1:8000/

If Tallyroll does not decide within the timeout, FAIL says what becomes of the request: open (the default)
lets it through, closed answers 503. It needs Python 3.8 and nothing else.
"""
import http.client
import json
import os
import sys
import uuid
from wsgiref.simple_server import make_server

import tallyroll

TIMEOUT = 0.3  # seconds
COPIED = ("RateLimit", "RateLimit-Policy", "Retry-After")


class TakeFirst:
    """Asks the limit about the client's key before each request."""

    def __init__(self, app, url, limit, fail_open):
        self.app, self.limit, self.fail_open = app, limit, fail_open
        self.server = tallyroll.Server(url, TIMEOUT)

    def __call__(self, environ, start_response):
        status, headers = self.take(environ.get("HTTP_X_API_KEY") or "anonymous")
        if status == 429:
            start_response("429 Too Many Requests", headers + [("Content-Type", "text/plain")])
            return [b"too many requests\n"]
        if status != 200 and not self.fail_open:
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"the limit cannot be asked\n"]

        def start(line, its_headers, exc_info=None):
            return start_response(line, its_headers + headers, exc_info)

        return self.app(environ, start)

    def take(self, key):
        """Returns the status and the headers to copy; a status other than 200 and 429 is no decision."""
        # With an id, a take that is sent again on another connection counts once.
        body = json.dumps({"limit": self.limit, "key": key, "id": uuid.uuid4().hex})
        try:
            status, headers, answer = self.server.post("/v1/take", body, {"Content-Type": "application/json"})
            if status in (200, 429):
                return status, [(name, headers[name]) for name in COPIED if headers[name]]
            why = f"{status} {answer[:1000].decode(errors='replace')}"
        except (http.client.HTTPException, OSError) as error:  # a timeout, too
            why = str(error)
        # It does not answer, or refuses the question itself: a mistake here is not the client's.
        print(f"no decision of the limit {self.limit}: {why}", file=sys.stderr, flush=True)
        return 0, []


def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello\n"]


if __name__ == "__main__":
    env = os.environ
    app = TakeFirst(hello, env.get("TALLYROLL_URL", "http://127.0.0.1:8080"), env.get("LIMIT", "login"),
                    env.get("FAIL") != "closed")
    host, port = env.get("ADDR", "127.0.0.1:8000").rsplit(":", 1)
    make_server(host, int(port), app).serve_forever()
