#!/usr/bin/env python3
"""A WSGI service that runs only if a limit of Tallyroll allows the request: copy TakeFirst, and
tallyroll.py beside it.

    TALLYROLL_URL=http://127.0.0.1:8080 LIMIT=login examples/python/middleware.py
    curl -i -H 'X-Api-Key: alice' http://127.0.0.1:8000/

If Tallyroll does not answer within the timeout, or with 5xx, FAIL says what becomes of the request: open (the
default) lets it through, closed answers 503. So does any other answer, whatever FAIL is: the question is
wrong, and to let everybody through would hide that. It needs Python 3.8 and nothing else.
"""
import hashlib
import http.client
import json
import os
import sys
import uuid
from wsgiref.simple_server import make_server

import tallyroll

TIMEOUT = 0.3  # seconds
COPIED = ("RateLimit", "RateLimit-Policy", "Retry-After")


def key_of(header):
    """Returns the key of a client. WSGI has a header's bytes as Latin-1, and JSON has no bytes that are not
    UTF-8: they are hashed, as Tallyroll hashes a key that is too long."""
    text = header.encode("latin-1")
    try:
        return text.decode() or "anonymous"
    except UnicodeDecodeError:
        return "sha256:" + hashlib.sha256(text).hexdigest()


class TakeFirst:
    """Asks the limit about the client's key before each request."""

    def __init__(self, app, url, limit, fail_open):
        self.app, self.limit, self.fail_open = app, limit, fail_open
        self.server = tallyroll.Server(url, TIMEOUT)

    def __call__(self, environ, start_response):
        status, headers = self.take(key_of(environ.get("HTTP_X_API_KEY", "")))
        if status == 429:
            start_response("429 Too Many Requests", headers + [("Content-Type", "text/plain")])
            return [b"too many requests\n"]
        if status != 200 and (status < 500 or not self.fail_open):
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"the limit cannot be asked\n"]

        def start(line, its_headers, exc_info=None):
            return start_response(line, its_headers + headers, exc_info)

        return self.app(environ, start)

    def take(self, key):
        """Returns the status, 503 without an answer, and the headers to copy. 200 and 429 are decisions."""
        # With an id, a take that is sent again on another connection counts once.
        body = json.dumps({"limit": self.limit, "key": key, "id": uuid.uuid4().hex})
        try:
            status, headers, answer = self.server.post("/v1/take", body, {"Content-Type": "application/json"})
            if status in (200, 429):
                return status, [(name, headers[name]) for name in COPIED if headers[name]]
            why = f"{status} {answer[:1000].decode(errors='replace')}"
        except (http.client.HTTPException, OSError) as error:  # a timeout, too
            status, why = 503, str(error)
        print(f"no decision of the limit {self.limit}: {why}", file=sys.stderr, flush=True)
        return status, []


def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello\n"]


if __name__ == "__main__":
    env = os.environ
    app = TakeFirst(hello, env.get("TALLYROLL_URL", "http://127.0.0.1:8080"), env.get("LIMIT", "login"),
                    env.get("FAIL") != "closed")
    host, port = env.get("ADDR", "127.0.0.1:8000").rsplit(":", 1)
    make_server(host, int(port), app).serve_forever()
