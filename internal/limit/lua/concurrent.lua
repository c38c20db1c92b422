-- concurrent: a sorted set with a member per slot that is held: the name of its lease. The score is the end
-- of the lease in microseconds. Each renewal increases it by at least one, which distinguishes a take to be
-- undone from a later one of the same name.
--
-- A key has no time of its own. If the clock goes back, leases would last longer by as much. Then leases that
-- end later than any new one could are cut to a whole window. None ends early.
policies.concurrent = (function()
	local function text(score) return string.format('%.0f', score) end

	-- cut shortens leases after a clock went back, a bounded number at a time.
	local function cut(key, last)
		local beyond = redis.call('ZRANGEBYSCORE', key, '(' .. text(last), '+inf', 'LIMIT', 0, math.min(step, 1000))
		local members = {}
		for _, lease in ipairs(beyond) do
			members[#members + 1] = text(last)
			members[#members + 1] = lease
		end
		redis.call('ZADD', key, 'XX', unpack(members))
	end

	local p = {}

	function p.look(key, now, window, lease)
		local s = {now = now, date = now, window = window}
		local last = (now + window) * 1000 + 999
		local newest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
		if newest[1] and tonumber(newest[2]) > last and string.sub(ARGV[1], 1, 1) ~= '0' then
			cut(key, last)
		end
		s.count = newest[1] and redis.call('ZCOUNT', key, text((now + 1) * 1000), '+inf') or 0
		s.lower, s.upper = s.count, s.count
		local score = s.count > 0 and lease ~= '' and tonumber(redis.call('ZSCORE', key, lease) or 0)
		s.held = score and score >= (now + 1) * 1000 and score or nil
		return s
	end

	-- add acquires a slot, or renews one that is held. It removes one ended slot per slot that it adds, and
	-- some more.
	function p.add(key, s, _, lease)
		s.score = math.max((s.now + s.window) * 1000, s.held and s.held + 1 or 0)
		redis.call('ZADD', key, text(s.score), lease)
		local ended = redis.call('ZCARD', key) - s.count - (s.held and 0 or 1)
		if ended > 0 then
			redis.call('ZREMRANGEBYRANK', key, 0, math.min(ended, 1 + step) - 1)
		end
		redis.call('PEXPIRE', key, s.window + 1)
	end

	-- give frees a slot; with a score, only one that was acquired with it and not renewed since.
	function p.give(key, s, _, _, at, lease)
		if not s.held or at and s.held ~= at then
			return 0, 0, 0
		end
		redis.call('ZREM', key, lease)
		s.count = s.count - 1
		s.lower, s.upper = s.count, s.count
		return 1, 0, 0
	end

	-- wait returns when enough of the leases that end first have ended.
	function p.wait(key, s)
		local gone = redis.call('ZCARD', key) - s.count + s.excess - 1
		local first = redis.call('ZRANGE', key, gone, gone, 'WITHSCORES')
		return math.min(s.window, math.floor(first[2] / 1000) - s.now)
	end

	return p
end)()
