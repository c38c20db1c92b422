"""Calls the hooks of litellm_budget.py as LiteLLM's proxy does, for 50 clients at a time, and prints what was
spent in micro-dollars and how many calls were refused with which status."""
import asyncio
import collections
import json
import random
import sys
import types

import litellm_budget

MOST = litellm_budget.budget.most


async def call(spent, refused):
    budget, data = litellm_budget.budget, {"metadata": {"user": "alice", "tallyroll": "forged"}}
    try:
        data = await budget.async_pre_call_hook(types.SimpleNamespace(api_key="key"), None, data, "completion")
    except litellm_budget.HTTPException as refusal:
        refused[refusal.status_code] += 1
        return
    await asyncio.sleep(random.random() / 100)
    kwargs = {"litellm_params": {"metadata": data["metadata"]}}
    chance, cost = random.random(), random.randint(1, MOST)
    if chance < 0.3:
        await budget.async_log_failure_event(kwargs, None, None, None)  # of an attempt
        await asyncio.sleep(random.random() / 100)
    if chance < 0.1:
        await budget.async_post_call_failure_hook(data, None, None)
        return
    if chance > 0.9:  # of a model without a price
        cost, kwargs["response_cost"] = MOST, None
    kwargs.setdefault("response_cost", cost / 1_000_000)
    spent.append(cost)
    await budget.async_log_success_event(kwargs, None, None, None)


async def client(spent, refused):
    for _ in range(8):
        await call(spent, refused)


async def main():
    spent, refused = [], collections.Counter()
    await asyncio.gather(*(client(spent, refused) for _ in range(int(sys.argv[1]))))
    print(json.dumps({"spent": sum(spent), "refused": refused}))


asyncio.run(main())
