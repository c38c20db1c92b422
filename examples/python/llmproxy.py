#!/usr/bin/env python3
"""Stands before the API of a language model. It takes what a request can cost at most, under the limits
tokens-5h and tokens-7d, and settles what it did cost:

    TALLYROLL_URL=http://127.0.0.1:8080 UPSTREAM=https://llm.example examples/python/llmproxy.py

The caller's key is the field Authorization. Requests need max_tokens, of each of their n answers. A byte of a
request is a token at most, so no request costs more than was taken, as long as the model keeps to max_tokens.
"""
import hashlib
import http.client
import json
import os
import sys
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tallyroll import Server

TALLYROLL = Server(os.environ.get("TALLYROLL_URL", "http://127.0.0.1:8080"), 30)
UPSTREAM = Server(os.environ.get("UPSTREAM", ""), 300)


def send(server, path, body, headers):
    try:
        return server.post(path, body, {"Content-Type": "application/json", **headers})
    except (http.client.HTTPException, OSError):
        return 503, {}, b""


def ask(path, **body):
    """Sends until there is an answer: with its id, each request counts once."""
    for _ in range(5):
        status, headers, answer = send(TALLYROLL, path, json.dumps(body), {})
        if status < 500:
            break
        time.sleep(0.2)
    if status not in (200, 429):
        print(f"{path}: {status} {answer.decode(errors='replace')}", file=sys.stderr, flush=True)
    return status, headers, answer


class Proxy(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        caller, request = self.headers.get("Authorization", ""), uuid.uuid4().hex
        key = hashlib.sha256(caller.encode()).hexdigest()
        budget = [{"limit": name, "key": key} for name in ("tokens-5h", "tokens-7d")]
        try:
            question = json.loads(body)
            most, answers = question["max_tokens"], question.get("n")
        except (ValueError, KeyError, TypeError, AttributeError):
            return self.reply(400, b"max_tokens is missing\n")
        answers = 1 if answers is None else answers
        if not all(type(number) is int and 0 < number <= 1_000_000 for number in (most, answers)):
            return self.reply(400, b"max_tokens and n must be 1 to 1000000\n")
        most = most * answers + len(body)
        status, headers, answer = ask("/v1/take", take=budget, id=request, n=most, ttl="1h")
        if status == 429:
            return self.reply(429, b"no tokens are left\n", headers.get("Retry-After"))
        if status != 200:
            return self.reply(503, b"not taken: " + answer + b"\n")
        status, _, answer = send(UPSTREAM, self.path, body, {"Authorization": caller})
        if answer:  # otherwise the cost is unknown, so it stays as taken
            try:
                used = int(json.loads(answer)["usage"]["total_tokens"]) if status == 200 else 0
            except (ValueError, KeyError, TypeError):
                used = most  # of an answer without usage, such as a stream
            ask("/v1/settle", settle=budget, id=request, n=used)
        self.reply(status, answer)

    def reply(self, status, body, retry_after=None):
        self.send_response(status)
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    host, port = os.environ.get("ADDR", "127.0.0.1:8000").rsplit(":", 1)
    ThreadingHTTPServer.request_queue_size = 128  # with 5, the default, a busy machine resets connections
    ThreadingHTTPServer((host, int(port)), Proxy).serve_forever()
