-- log: a sorted set with a member for each hit. The score is the hit's time. Members count upwards from
-- 10^15, so they are unique, all of the same length, and stored as integers.
policies.log = (function()
	local p = {}

	function p.look(key, now, window)
		local s = {now = now, window = window, member = 1e15}
		local newest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
		local hits = 0
		if newest[1] then
			local t = tonumber(newest[2])
			s.forget = t - now > window
			if not s.forget then
				s.now = math.max(now, t)
				s.member = newest[1] + 1
				hits = redis.call('ZCOUNT', key, '(' .. s.now - window, '+inf')
			end
		end
		s.lower, s.count, s.upper = hits, hits, hits
		return s
	end

	local function trim(key, s)
		if s.forget then
			redis.call('DEL', key)
		else
			redis.call('ZREMRANGEBYSCORE', key, '-inf', s.now - s.window)
		end
	end

	function p.add(key, s, n)
		trim(key, s)
		local most = 1000 -- members in one command
		for from = 0, n - 1, most do
			local members = {}
			for i = from, math.min(from + most, n) - 1 do
				members[#members + 1] = s.now
				members[#members + 1] = string.format('%.0f', s.member + i)
			end
			redis.call('ZADD', key, unpack(members))
		end
		redis.call('PEXPIRE', key, s.ahead + s.window)
	end

	-- give removes the newest hits.
	function p.give(key, s, n)
		trim(key, s)
		n = math.min(n, s.count)
		if n > 0 then
			redis.call('ZPOPMAX', key, n)
			redis.call('PEXPIRE', key, s.ahead + s.window)
			local left = s.count - n
			s.lower, s.count, s.upper = left, left, left
		end
	end

	-- wait is for the oldest hits that have to leave.
	function p.wait(key, s)
		local gone = redis.call('ZCARD', key) - s.count + s.excess - 1
		local last = redis.call('ZRANGE', key, gone, gone, 'WITHSCORES')
		return last[2] + s.window - s.now
	end

	return p
end)()
