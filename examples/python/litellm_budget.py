"""A callback for LiteLLM's proxy that keeps each of its keys to a budget in money, also with many calls at a
time. Copy it and tallyroll.py beside config.yaml, which names it:

    litellm_settings: {callbacks: litellm_budget.budget}

and give Tallyroll a limit in micro-dollars, here 50 dollars in 30 days:

    limits:
      - {name: budget, window: 30d, max: 50000000}

Before a call it takes MOST, the most that a call can cost (100000: ten cents), and after the call it settles
what LiteLLM says that it did cost. TALLYROLL_URL and BUDGET name the server and the limit. If Tallyroll does
not decide, the call is refused.
"""
import asyncio
import http.client
import json
import os
import sys
import uuid

from fastapi import HTTPException
from litellm.integrations.custom_logger import CustomLogger

from tallyroll import Server


class Budget(CustomLogger):
    def __init__(self, url, limit, most):
        super().__init__()
        self.server, self.limit, self.most = Server(url, 10), limit, most

    async def ask(self, path, **body):
        """Sends until there is an answer: the id lets each request count once."""
        for pause in (0, 0.2, 1):
            await asyncio.sleep(pause)
            try:
                status, _, answer = await asyncio.to_thread(
                    self.server.post, path, json.dumps(body), {"Content-Type": "application/json"})
            except (http.client.HTTPException, OSError) as error:
                status, answer = 503, str(error).encode()
            if status < 500:
                break
        if status not in (200, 429):
            print(f"{path}: {status} {answer.decode(errors='replace')}", file=sys.stderr, flush=True)
        return status

    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        take = {"limit": self.limit, "key": user_api_key_dict.api_key or "anonymous", "id": uuid.uuid4().hex}
        data.setdefault("metadata", {})["tallyroll"] = take
        status = await self.ask("/v1/take", n=self.most, ttl="1h", **take)
        if status == 429:
            raise HTTPException(429, "the budget is used up")
        if status != 200:
            raise HTTPException(503, "the budget cannot be asked")
        return data

    async def settle(self, metadata, dollars):
        take = (metadata or {}).get("tallyroll")
        if take:
            await self.ask("/v1/settle", n=round(dollars * 1_000_000), **take)

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        cost = kwargs.get("response_cost")
        if cost is not None:  # of a model without a price it stays as taken
            await self.settle(kwargs.get("litellm_params", {}).get("metadata"), cost)

    # This is called once, after all attempts. What is given back before another attempt could be taken by others.
    async def async_post_call_failure_hook(self, request_data, original_exception, user_api_key_dict, *_):
        await self.settle(request_data.get("metadata"), 0)


budget = Budget(os.environ.get("TALLYROLL_URL", "http://127.0.0.1:8080"), os.environ.get("BUDGET", "budget"),
                int(os.environ.get("MOST", "100000")))
